//! Kernel arguments that an iPXE script can pass on, and texts that it can show.
//!
//! Pure. [`bedplate_api::kernel_argument`] defines the content of one argument.

use bedplate_api::kernel_argument;

/// Gives a shell on the host image's consoles (docs/guides/images.md): for pxed's configuration and for images. The Machine's
/// definition refuses it, as everything of `bedplate.`.
const DEBUG: &str = "bedplate.debug";

/// Returns the reason why an argument of pxed's configuration or of an image is rejected, with its remedy.
pub fn fault(argument: &str) -> Option<(String, &'static str)> {
    if argument == DEBUG { None } else { kernel_argument::fault(argument) }
}

/// Returns the problem of the first argument that iPXE or the kernel would not read unchanged.
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
    (total > MAX_BYTES).then(|| format!("the arguments have {total} bytes together, more than {MAX_BYTES}"))
}

/// For an image's arguments, and as many again for a Machine's: the kernel takes 2048 bytes on x86 (COMMAND_LINE_SIZE), of
/// which some are pxed's own, and cuts off the rest without a word.
const MAX_BYTES: usize = 800;

/// Converts a text for an `echo` of iPXE: one line of printable ASCII without characters that iPXE would interpret.
pub(crate) fn screen_text(text: &str) -> String {
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
    fn the_first_bad_argument_is_named() {
        let text = problem(&["quiet".to_owned(), "a;b".to_owned(), "#".to_owned()]).unwrap();
        assert_eq!(text, "argument 1 (\"a;b\") holds ;, on which iPXE or the kernel may act");
        assert_eq!(problem(&["quiet".to_owned()]), None);
    }

    #[test]
    fn a_shell_for_debugging_can_be_asked_for_but_what_pxed_sets_cannot() {
        assert_eq!(problem(&["bedplate.debug".to_owned()]), None);
        for bad in ["bedplate.debug=1", "bedplate.url=http://elsewhere", "bedplate.mac=x", "initrd=x"] {
            assert!(problem(&[bad.to_owned()]).is_some(), "{bad}");
        }
        assert!(kernel_argument::fault(DEBUG).is_some(), "a Machine may not hold it");
    }

    #[test]
    fn an_image_s_arguments_and_a_machine_s_fit_into_one_command_line() {
        let arguments = vec!["x".repeat(99); 8];
        assert_eq!(problem(&arguments), None);
        assert!(problem(&[arguments, vec!["x".to_owned()]].concat()).unwrap().contains("802 bytes"));
    }

    #[test]
    fn screen_text_cannot_run_a_command() {
        assert_eq!(screen_text("a ${x}\nreboot || b"), "a .{x} reboot .. b");
        assert_eq!(screen_text(&"x".repeat(1000)).len(), 240);
    }
}
