//! Numbers of system calls outside of the two places that name them: `trace/src/linux.rs` for what
//! stands in a trace, and the machine's table below `vm/src/syscall`.
//!
//! What is compared with a number that is written out is found where the field of an event that
//! holds a call's number (`nr`) is matched, compared or looked for; and constants of the `libc`
//! crate are found outside of `vm`, which alone calls the kernel.

use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprBinary, ExprMatch, ExprMethodCall, Ident, Item, ItemConst, Lit, Macro};

/// Where numbers may stand.
const PLACES: &[&str] = &["trace/src/linux.rs", "vm/src/syscall"];
/// Where constants of the `libc` crate may.
const CALLERS: &[&str] = &["vm", "jit"];

/// Checks the sources of all crates, their tests left out.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, text) in sources {
        let is_code = name.components().any(|part| part.as_os_str() == "src");
        let is_test = name.components().any(|part| part.as_os_str() == "tests");
        if !is_code || is_test || PLACES.iter().any(|place| name.starts_with(place)) {
            continue;
        }
        let Ok(file) = syn::parse_file(text) else { continue };
        let mut numbers = Numbers { constants: Vec::new(), found: Vec::new(), name };
        numbers.visit_file(&file);
        let name = name.display();
        let say = |what: &String| format!("{name}: {what}; `refrain_trace::linux` names calls");
        violations.extend(numbers.found.iter().map(say));
    }
    violations
}

struct Numbers<'a> {
    /// Constants of the file that are numbers, or lists of them.
    constants: Vec<Ident>,
    found: Vec<String>,
    name: &'a Path,
}

/// What an expression or a pattern has in it.
#[derive(Default)]
struct Parts {
    /// The field or variable that holds a call's number.
    nr: bool,
    /// A number that is written out.
    number: bool,
    words: Vec<Ident>,
}

impl<'ast> Visit<'ast> for Parts {
    fn visit_ident(&mut self, word: &'ast Ident) {
        self.nr |= word == "nr";
        self.words.push(word.clone());
    }

    fn visit_lit(&mut self, literal: &'ast Lit) {
        // Events of other kinds have sizes and flags in the same field: 0 and 1 say nothing.
        let tells = |number: u64| number > 1;
        let value = if let Lit::Int(value) = literal { value.base10_parse().ok() } else { None };
        self.number |= value.is_some_and(tells);
    }
}

impl Parts {
    fn of_expression(expression: &Expr) -> Parts {
        let mut parts = Parts::default();
        parts.visit_expr(expression);
        parts
    }
}

impl Numbers<'_> {
    /// A call's number meets what is or names a number.
    fn meet(&mut self, nr: &Parts, other: &Parts, how: &str) {
        let named = other.words.iter().any(|word| self.constants.contains(word));
        if nr.nr && (other.number || named) {
            self.found.push(format!("a call's number is {how} a number that is written out"));
        }
    }
}

impl<'ast> Visit<'ast> for Numbers<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let tests = |attributes: &[syn::Attribute]| attributes.iter().any(super::is_for_tests);
        match item {
            Item::Mod(module) if tests(&module.attrs) => {}
            // Its constants are not this module's.
            Item::Mod(_) => {
                let outside = self.constants.len();
                visit::visit_item(self, item);
                self.constants.truncate(outside);
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_item_const(&mut self, constant: &'ast ItemConst) {
        let parts = Parts::of_expression(&constant.expr);
        if parts.number && parts.words.is_empty() {
            self.constants.push(constant.ident.clone());
        }
        visit::visit_item_const(self, constant);
    }

    fn visit_expr_match(&mut self, found: &'ast ExprMatch) {
        let nr = Parts::of_expression(&found.expr);
        for arm in &found.arms {
            let mut pattern = Parts::default();
            // Of a tuple the number is the element that stands where the pattern's does.
            match (&*found.expr, &arm.pat) {
                (Expr::Tuple(values), syn::Pat::Tuple(patterns)) => {
                    for (value, part) in values.elems.iter().zip(&patterns.elems) {
                        let mut pattern = Parts::default();
                        pattern.visit_pat(part);
                        self.meet(&Parts::of_expression(value), &pattern, "matched with");
                    }
                    continue;
                }
                _ => pattern.visit_pat(&arm.pat),
            }
            self.meet(&nr, &pattern, "matched with");
        }
        visit::visit_expr_match(self, found);
    }

    fn visit_expr_binary(&mut self, found: &'ast ExprBinary) {
        if matches!(found.op, BinOp::Eq(_) | BinOp::Ne(_)) {
            let sides = [&found.left, &found.right].map(|side| Parts::of_expression(side));
            self.meet(&sides[0], &sides[1], "compared with");
            self.meet(&sides[1], &sides[0], "compared with");
        }
        visit::visit_expr_binary(self, found);
    }

    fn visit_expr_method_call(&mut self, found: &'ast ExprMethodCall) {
        if found.method == "contains" {
            let list = Parts::of_expression(&found.receiver);
            for argument in &found.args {
                self.meet(&Parts::of_expression(argument), &list, "looked for among");
            }
        }
        visit::visit_expr_method_call(self, found);
    }

    fn visit_macro(&mut self, invocation: &'ast Macro) {
        let matches = |input: syn::parse::ParseStream<'_>| {
            let value: Expr = input.parse()?;
            input.parse::<syn::Token![,]>()?;
            let pattern = syn::Pat::parse_multi_with_leading_vert(input)?;
            input.parse::<proc_macro2::TokenStream>()?;
            Ok((value, pattern))
        };
        if invocation.path.is_ident("matches")
            && let Ok((value, pattern)) = invocation.parse_body_with(matches)
        {
            let mut parts = Parts::default();
            parts.visit_pat(&pattern);
            self.meet(&Parts::of_expression(&value), &parts, "matched with");
        }
    }

    fn visit_ident(&mut self, word: &'ast Ident) {
        if word.to_string().starts_with("SYS_")
            && !CALLERS.iter().any(|owner| self.name.starts_with(owner))
        {
            self.found.push(format!("{word}, which is the machine's"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(name: &str, text: &str) -> usize {
        check(&[(PathBuf::from(name), text.to_owned())]).len()
    }

    #[test]
    fn numbers_are_found_however_they_are_compared() {
        for text in [
            "fn f(e: &Event) -> bool { e.nr == 202 }",
            "fn f(e: &Event) -> bool { matches!(e.nr, 9..=12 | 25) }",
            "fn f(nr: u16) -> bool { match nr { 0 | 17 => true, _ => false } }",
            "fn f(e: &Event) -> bool { match (e.nr, e.value) { (202, 0) => true, _ => false } }",
            "fn f(e: &Event) -> bool { const CALLS: [u16; 2] = [1, 18]; CALLS.contains(&e.nr) }",
            "const FUTEX: u16 = 202; fn f(e: &Event) -> bool { e.nr == FUTEX }",
            "fn f() -> i64 { libc::SYS_futex }",
        ] {
            assert_eq!(complaints("cli/src/a.rs", text), 1, "{text}");
            assert_eq!(complaints("vm/src/syscall/a.rs", text), 0, "{text}");
            assert_eq!(complaints("cli/tests/a.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn names_and_other_numbers_are_not() {
        for text in [
            "use refrain_trace::linux::FUTEX; fn f(e: &Event) -> bool { e.nr == FUTEX }",
            "fn f(e: &Event) -> bool { match (e.nr, e.value) { (FUTEX, 0) => true, _ => false } }",
            "fn f(e: &Event) -> bool { e.value == 202 }",
            "fn f(e: &Event) -> u64 { u64::from(e.nr) * 2 }",
            "#[cfg(test)] mod tests { fn f(e: &Event) -> bool { e.nr == 202 } }",
        ] {
            assert_eq!(complaints("cli/src/a.rs", text), 0, "{text}");
        }
    }
}
