//! Circles of imports: files of a crate that need each other, so that none can be read first.
//!
//! A file needs another one if it names something by a path that leads there. A parent and its
//! child modules may need each other: the child is a part of the parent. Test modules may need
//! anything.

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, Meta, UseTree};

/// A module's path in its crate; the crate's root is empty.
type Module = Vec<String>;

/// Checks all crates; `sources` are the files of the checkout, by their names relative to its root.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Vec<String> {
    let mut crates: BTreeMap<String, BTreeMap<Module, &str>> = BTreeMap::new();
    for (name, text) in sources {
        if let Some((owner, module)) = place(name)
            && !module.iter().any(|part| part == "tests")
        {
            crates.entry(owner).or_default().insert(module, text);
        }
    }
    crates.iter().flat_map(|(owner, files)| check_crate(owner, files)).collect()
}

/// A source file's crate and module.
fn place(name: &Path) -> Option<(String, Module)> {
    let mut parts = name.iter().map(|part| part.to_string_lossy().into_owned());
    let owner = parts.next()?;
    let mut module: Module = (parts.next()? == "src").then(|| parts.collect())?;
    let last = module.pop()?;
    match last.strip_suffix(".rs")? {
        "mod" | "lib" => {}
        "main" if owner == "xtask" => {}
        "main" => return None,
        file => module.push(file.to_owned()),
    }
    Some((owner, module))
}

fn check_crate(owner: &str, files: &BTreeMap<Module, &str>) -> Vec<String> {
    let names: Vec<&Module> = files.keys().collect();
    let mut violations = Vec::new();
    let mut graph = DiGraphMap::<usize, ()>::new();
    for (from, (module, text)) in files.iter().enumerate() {
        let needs = match needs(text, module, files) {
            Ok(needs) => needs,
            Err(error) => {
                violations.push(format!("{owner}/{}: {error}", shown(module)));
                continue;
            }
        };
        for needed in needs.iter().filter(|needed| !are_family(module, needed)) {
            let to = names.binary_search(&needed).expect("only files are needed");
            graph.add_edge(from, to, ());
        }
    }
    for circle in tarjan_scc(&graph) {
        let mut members: Vec<String> = circle.iter().map(|&at| shown(names[at])).collect();
        members.sort();
        if members.len() > 1 {
            violations.push(format!("{owner}: a circle of imports: {}", members.join(", ")));
        }
    }
    violations
}

fn shown(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("::") }
}

/// Whether one of the modules holds the other one.
fn are_family(a: &[String], b: &[String]) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// The files that a file's paths lead to.
fn needs<T>(
    text: &str,
    module: &Module,
    files: &BTreeMap<Module, T>,
) -> syn::Result<BTreeSet<Module>> {
    let mut paths = Paths { found: Vec::new() };
    paths.visit_file(&syn::parse_file(text)?);
    Ok(paths.found.iter().filter_map(|path| leads_to(path, module, files)).collect())
}

/// The deepest file on a path's way, if the path leads into this crate.
fn leads_to<T>(path: &[String], module: &Module, files: &BTreeMap<Module, T>) -> Option<Module> {
    let mut at = module.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => at.clear(),
        "super" | "self" => {}
        child => {
            at.push(child.to_owned());
            files.get(&at)?;
        }
    }
    if at == *module {
        while rest.first().is_some_and(|part| part == "super" || part == "self") {
            if rest[0] == "super" {
                at.pop();
            }
            rest = &rest[1..];
        }
    } else {
        rest = &rest[1..];
    }
    for part in rest {
        at.push(part.clone());
        if !files.contains_key(&at) {
            at.pop();
            break;
        }
    }
    Some(at)
}

/// All paths of a file, but for those of its tests.
struct Paths {
    found: Vec<Vec<String>>,
}

impl Paths {
    fn take_tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.take_tree(&path.tree, &with(&path.ident)),
            UseTree::Name(name) => self.found.push(with(&name.ident)),
            UseTree::Rename(rename) => self.found.push(with(&rename.ident)),
            UseTree::Glob(_) => self.found.push(before.to_vec()),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.take_tree(tree, before));
            }
        }
    }

    /// Takes the paths of what only a macro can read: those that begin with `crate` and the like.
    fn take_tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(word) if path.is_empty() => {
                    let word = word.to_string();
                    let begins = ["crate", "super", "self"].contains(&word.as_str());
                    path.extend(begins.then_some(word));
                }
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(colon) if colon.as_char() == ':' => {}
                other => {
                    self.found.push(std::mem::take(&mut path));
                    if let TokenTree::Group(group) = other {
                        self.take_tokens(group.stream());
                    }
                }
            }
        }
        self.found.push(path);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !attributes.iter().any(super::is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.take_tree(&item.tree, &[]);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        // `super` means this file in a module that is written out in it.
        if let Some((_, items)) = &item.content {
            let mut inner = Paths { found: Vec::new() };
            items.iter().for_each(|item| inner.visit_item(item));
            let outward = |path: &Vec<String>| path.first().is_some_and(|part| part == "super");
            self.found.extend(inner.found.into_iter().map(|path| match outward(&path) {
                true => [&["self".to_owned()], &path[1..]].concat(),
                false => path,
            }));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.found.push(path.segments.iter().map(|part| part.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast Macro) {
        self.take_tokens(invocation.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.take_tokens(list.tokens.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> =
            files.iter().map(|&(name, text)| (PathBuf::from(name), text.to_owned())).collect();
        check(&sources)
    }

    #[test]
    fn circles_are_found_however_they_are_written() {
        let to_b = [
            "use crate::b::B;",
            "use super::b::{self, B as C};",
            "use crate::{x, b::*};",
            "fn f() { crate::b::g() }",
            "fn f() -> super::b::B { todo!() }",
            "fn f() { assert!(super::b::g(), \"{}\", 1) }",
            "#[derive(Args)] struct S { #[arg(value_parser = crate::b::parse)] field: u8 }",
        ];
        for text in to_b {
            let files = [("vm/src/a.rs", text), ("vm/src/b.rs", "use crate::a::A;")];
            assert_eq!(complaints(&files), ["vm: a circle of imports: a, b"], "{text}");
        }
        let long = [
            ("vm/src/a.rs", "use super::b::c::D;"),
            ("vm/src/b/mod.rs", "mod c;"),
            ("vm/src/b/c.rs", "use crate::e;"),
            ("vm/src/e.rs", "use crate::a;"),
        ];
        assert_eq!(complaints(&long), ["vm: a circle of imports: a, b::c, e"]);
    }

    #[test]
    fn families_tests_and_other_crates_are_none() {
        let family = [("vm/src/a.rs", "mod b; use b::B;"), ("vm/src/a/b.rs", "use super::A;")];
        let tests = [
            ("vm/src/a.rs", "use crate::b; #[cfg(test)] mod tests { use crate::b; }"),
            ("vm/src/b.rs", "#[cfg(test)] mod tests { use crate::a; }"),
            ("vm/src/b/tests.rs", "use crate::a;"),
        ];
        let others = [("vm/src/a.rs", "use jit::b;"), ("vm/src/b.rs", "use crate::a;")];
        let inline = [("vm/src/a.rs", "mod m { use super::b; }"), ("vm/src/b.rs", "use crate::a;")];
        for files in [&family[..], &tests, &others, &inline] {
            assert!(complaints(files).is_empty(), "{files:?}");
        }
    }
}
