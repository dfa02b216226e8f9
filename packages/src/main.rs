//! `mooring-man FOLDER`: writes the man pages of all programs. `cargo xtask package` runs it; no
//! package has it.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let [folder] = words.as_slice() else {
        eprintln!("mooring-man: want one word, the folder that the man pages are written into");
        return ExitCode::from(2);
    };
    match mooring_packages::write_man_pages(Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-man: {error:#}");
            ExitCode::FAILURE
        }
    }
}
