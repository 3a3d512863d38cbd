//! Which kernel arguments can be passed on by an iPXE script, and which texts can be shown by one.
//!
//! Pure. iPXE splits a line at white space, expands `${...}`, and takes `||`, `&&` and `;` as operators and `#` as the
//! start of a comment where they begin a word (iPXE, core/exec.c `split_command`, `expand_command`): an argument that
//! holds one of these would do something else on the machine than its author meant.

/// What is wrong with the first argument that iPXE would not pass on as it is.
pub fn problem(arguments: &[String]) -> Option<String> {
    too_long(arguments).or_else(|| {
        arguments.iter().enumerate().find_map(|(index, argument)| {
            let (why, _) = fault(argument)?;
            Some(format!("argument {index} ({:?}) {why}", argument.chars().take(40).collect::<String>()))
        })
    })
}

/// Says so if the arguments do not fit into a kernel's command line.
pub fn too_long(arguments: &[String]) -> Option<String> {
    let total: usize = arguments.iter().map(|a| a.len() + 1).sum();
    (total > MAX_BYTES).then(|| format!("together they have {total} bytes, more than {MAX_BYTES}"))
}

/// Why iPXE would not pass on an argument as it is, and what to do about it.
pub fn fault(argument: &str) -> Option<(&'static str, &'static str)> {
    Some(if argument.is_empty() {
        ("is empty", "remove it")
    } else if !argument.bytes().all(|b| b.is_ascii_graphic()) {
        ("holds a blank or a character outside of printable ASCII", "write each argument by itself, in ASCII")
    } else if argument.contains("${") {
        ("holds ${, which iPXE would expand", "write the value itself")
    } else if argument.starts_with('#') {
        ("starts with #, which begins a comment", "remove it")
    } else if matches!(argument, "||" | "&&" | ";") {
        ("is an operator of iPXE's", "remove it")
    } else if ["bedplate.url=", "bedplate.mac=", "initrd="].iter().any(|own| argument.starts_with(own)) {
        ("is set by pxed itself", "remove it")
    } else {
        return None;
    })
}

/// The kernel takes 2048 bytes on x86 (COMMAND_LINE_SIZE); some are pxed's own.
const MAX_BYTES: usize = 1600;

/// A text that an `echo` of iPXE shows as it is: one line of printable ASCII without what iPXE would interpret.
pub fn screen_text(text: &str) -> String {
    text.chars()
        .take(240)
        .map(|c| match c {
            '$' | '#' | '|' | '&' | ';' | '\\' => '.',
            ' '..='~' => c,
            _ => ' ',
        })
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ipxe_would_interpret_is_refused() {
        for bad in
            ["", "a b", "x=${mac}", "||", ";", "#x", "a\nboot", "ü", "bedplate.url=http://evil", "initrd=x"]
        {
            assert!(problem(&["quiet".to_owned(), bad.to_owned()]).is_some(), "{bad:?}");
        }
        let good = ["console=ttyS0,115200n8", "root=UUID=$x", "a=b|c;d", "acpi_osi=\"Linux\""];
        assert_eq!(problem(&good.map(str::to_owned)), None);
        assert!(problem(&["x".repeat(3000)]).unwrap().contains("bytes"));
    }

    #[test]
    fn screen_text_cannot_run_a_command() {
        assert_eq!(screen_text("a ${x}\nreboot || b"), "a .{x} reboot .. b");
        assert_eq!(screen_text(&"x".repeat(1000)).len(), 240);
    }
}
