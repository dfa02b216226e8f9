//! `cargo xtask proto`: generates the code and the descriptor of the wire from `api/proto`. Both
//! are committed, so that a build needs no protobuf compiler.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

const GENERATED: &str = "api/src/generated/mooring.v1.rs";
const DESCRIPTOR: &str = "api/proto/mooring.v1.binpb";
/// All files that are compiled.
const PROTOS: [&str; 3] = ["mooring/v1/agent.proto", "mooring/v1/host.proto", "mooring/v1/identity.proto"];

/// Options of `cargo xtask proto`.
#[derive(Debug, Args)]
pub(crate) struct ProtoArgs {
    /// Change nothing; fail if the committed files are not what `api/proto` gives
    #[arg(long)]
    pub(crate) check: bool,
}

/// Generates the files, or compares them with the committed ones.
pub(crate) fn run(args: &ProtoArgs, root: &Path) -> Result<()> {
    let descriptors = protox::compile(PROTOS, [root.join("api/proto")]).context("compile api/proto")?;
    let bytes = prost::Message::encode_to_vec(&descriptors);
    let out = tempfile::tempdir().context("make a folder for generated code")?;
    tonic_prost_build::configure()
        .out_dir(out.path())
        // A derived Debug would print the secret; `api/src/lib.rs` writes one that does not.
        .skip_debug([".mooring.v1.ChapSide"])
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)
        .context("generate code for mooring.v1")?;
    let code = fs::read(out.path().join("mooring.v1.rs")).context("read the generated code")?;
    for (file, wanted) in [(GENERATED, code), (DESCRIPTOR, bytes)] {
        let path = root.join(file);
        if fs::read(&path).is_ok_and(|committed| committed == wanted) {
            continue;
        }
        if args.check {
            bail!("{file} is not what api/proto gives: run `cargo xtask proto` and commit it");
        }
        fs::write(&path, wanted).with_context(|| format!("write {file}"))?;
        println!("wrote {file}");
    }
    Ok(())
}
