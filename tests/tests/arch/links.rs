//! Links between the pages of the repository lead to a file that is there, and to a heading that it
//! has. Names of tests are those of functions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The text without fenced blocks and code in line, in which brackets mean nothing.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Targets of the links in a page that are not addresses on the web.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let targets = text.match_indices("](").filter_map(|(at, mark)| {
        let rest = &text[at + mark.len()..];
        rest.split_once(')').map(|(target, _)| target)
    });
    targets
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
        .map(str::to_owned)
        .collect()
}

/// The names that headings of a page have in links: lower case, without signs, a dash for each
/// blank.
fn headings(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title == line || !title.starts_with(' ') {
            continue;
        }
        let name = title.trim().to_lowercase();
        let name: String =
            name.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect();
        found.insert(name.replace(' ', "-"));
    }
    found
}

/// Every page below a folder, but for what is built or hidden.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder can be listed") {
        let path = entry.expect("a folder can be listed").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

#[test]
fn links_of_pages_lead_to_what_is_there() {
    let root = super::root();
    let mut pages = Vec::new();
    self::pages(&root, &mut pages);
    assert!(pages.len() > 50, "{} pages", pages.len());
    let mut wrong = Vec::new();
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("a page is text");
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let to = if path.is_empty() { page.clone() } else { page.with_file_name("").join(path) };
            let there = to.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&to).is_ok_and(|text| headings(&text).contains(heading)));
            if !there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_index_of_decisions_names_each() {
    let folder = super::root().join("docs/decisions");
    let index = std::fs::read_to_string(folder.join("0001-record-decisions.md")).expect("the index");
    let named: BTreeSet<String> = links(&index).into_iter().collect();
    let mut pages = Vec::new();
    self::pages(&folder, &mut pages);
    let names =
        pages.iter().filter_map(|page| page.file_name()).map(|name| name.to_string_lossy().into_owned());
    let missing: Vec<_> = names.filter(|name| !name.starts_with("0001") && !named.contains(name)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

/// A test's name without the modules before it, and the last of these.
fn parted(name: &str) -> (Option<&str>, &str) {
    name.rsplit_once("::").map_or((None, name), |(modules, bare)| (modules.rsplit("::").next(), bare))
}

/// A word that only a test's name can be: it has at least four `_`, with modules before it or
/// without.
fn is_long_name(word: &str) -> bool {
    parted(word).1.matches('_').count() >= 4
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | ':'))
}

/// Long names in the code of a page.
fn long_names(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).filter(|word| is_long_name(word)).collect()
}

/// Long names with the file that the page names behind them: `` `a`, `b` (`c.rs`) ``. The file is
/// that of each name behind the bracket before it.
fn places(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut names = Vec::new();
        let mut parts = line.split('`');
        while let (Some(before), Some(code)) = (parts.next(), parts.next()) {
            if before.contains(')') {
                names.clear();
            }
            if is_long_name(code) {
                names.push(code);
            } else if before.ends_with('(') && Path::new(code).extension().is_some_and(|of| of == "rs") {
                found.extend(names.drain(..).map(|name| (name, code)));
            }
        }
    }
    found
}

/// Names of functions, each with the paths of the files that have one.
fn functions(sources: &[(String, String)]) -> BTreeMap<&str, Vec<&str>> {
    let mut found = BTreeMap::<&str, Vec<&str>>::new();
    for (path, text) in sources {
        for name in text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next()) {
            found.entry(name).or_default().push(path);
        }
    }
    found
}

/// True if there is a function of this name. A module before it is a file that has it, or a folder
/// of such a file.
fn is_there(name: &str, functions: &BTreeMap<&str, Vec<&str>>) -> bool {
    let (module, bare) = parted(name);
    functions.get(bare).is_some_and(|paths| {
        module.is_none_or(|module| {
            paths.iter().any(|path| path.trim_end_matches(".rs").split('/').any(|part| part == module))
        })
    })
}

#[test]
fn tests_that_pages_name_are_there() {
    let sources = super::sources();
    let functions = functions(&sources);
    let is_in =
        |name: &str, file: &str| functions.get(parted(name).1).is_some_and(|paths| paths.contains(&file));
    for page in ["docs/requirements.md", "docs/invariants.md", "docs/simulation.md"] {
        let text = std::fs::read_to_string(super::root().join(page)).expect("a page is text");
        let names = long_names(&text);
        assert!(names.len() > 10, "{page} names {} tests", names.len());
        let missing: Vec<_> = names.iter().filter(|name| !is_there(name, &functions)).collect();
        assert!(missing.is_empty(), "{page} names tests that are not there: {missing:?}");
        let places = places(&text);
        assert!(page != "docs/requirements.md" || places.len() > 50, "{page} names {} files", places.len());
        let elsewhere: Vec<_> = places.into_iter().filter(|(name, file)| !is_in(name, file)).collect();
        assert!(elsewhere.is_empty(), "{page} names tests in files that do not have them: {elsewhere:?}");
    }
}

#[test]
fn the_file_of_a_name_is_the_next_one_in_brackets() {
    let page = "| `a_b_c_d_e`, `short`, `b_c_d_e_f` (`x/y.rs`), `c_d_e_f_g` (on both), `d_e_f_g_h` (`z.rs`) |\n\
                | `e_f_g_h_i`, the scenario (`w.rs`), `f_g_h_i_j` |\n(`v.rs`)\n";
    let wanted =
        [("a_b_c_d_e", "x/y.rs"), ("b_c_d_e_f", "x/y.rs"), ("d_e_f_g_h", "z.rs"), ("e_f_g_h_i", "w.rs")];
    assert_eq!(places(page), wanted);
}

#[test]
fn a_link_to_nothing_would_be_found() {
    let page = "# A `b` c!\n\n[x](#a-b-c) `[y](no)` [z](gone.md#part)\n[w](https://example.org)\n```\n[v](code)\n# no heading\n```\n";
    assert_eq!(links(page), ["#a-b-c", "gone.md#part"]);
    assert_eq!(headings(page), BTreeSet::from(["a-b-c".to_owned()]));
    let names = long_names("`a_b_c_d_e` a_b_c_d_f `thin_pool_full` `a::b_c_d_e_f` `a_b_c::d_e_f`");
    assert_eq!(names, BTreeSet::from(["a::b_c_d_e_f", "a_b_c_d_e"]));
    let sources = [("x/a.rs".to_owned(), "fn a_b() {}\nfn c_d<T>() {}".to_owned())];
    let functions = functions(&sources);
    for (name, there) in [
        ("a_b", true),
        ("a::a_b", true),
        ("x::c_d", true),
        ("b::a_b", false),
        ("a::a_c", false),
        ("a", false),
    ] {
        assert_eq!(is_there(name, &functions), there, "{name}");
    }
}
