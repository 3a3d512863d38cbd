//! Which kernel arguments may be written: in a Machine, in pxed's configuration, in an image's own configuration.
//!
//! An argument travels through an iPXE script and the kernel's command line before anybody reads it. iPXE splits a line at
//! white space, expands `${...}`, takes `||`, `&&` and `;` as operators and `#` as the start of a comment, and joins lines at
//! a backslash (core/exec.c, image/script.c); the kernel joins what stands between double quotes, and hands what follows
//! `--` to init (lib/cmdline.c, init/main.c). Which of them acts where differs by version: so these signs are refused
//! everywhere in an argument.
//!
//! The rule stands twice: here, and in the Machine's definition as [`PATTERN`] and CEL rules. A test in pxed tries both
//! with the same arguments.
//!
//! Pure: text in, reason out.

/// Characters of an argument before [`REFUSED`] is excluded: printable ASCII without space.
pub(crate) const PATTERN: &str = "^[!-~]+$";

/// Signs that an argument must not hold.
pub const REFUSED: [char; 8] = ['"', '#', '&', '\'', ';', '\\', '`', '|'];

/// Maximum length of one argument in bytes.
pub const MAX_BYTES: usize = 1024;

/// Beginnings of arguments that pxed itself writes.
pub const RESERVED: [&str; 2] = ["bedplate.", "initrd="];

/// Returns the reason why an argument is rejected, and the remedy.
pub fn fault(argument: &str) -> Option<(String, &'static str)> {
    let fault = |why: &str, remedy| Some((why.to_owned(), remedy));
    if argument.is_empty() {
        return fault("is empty", "remove it");
    }
    if argument.len() > MAX_BYTES {
        return Some((format!("is longer than {MAX_BYTES} bytes"), "write a shorter one"));
    }
    if argument.contains(' ') {
        return fault("contains a space", "write each argument as an entry of its own");
    }
    if let Some(sign) = argument.chars().find(|sign| !is_allowed(*sign)) {
        let why = match sign {
            '!'..='~' => format!("holds {sign}, on which iPXE or the kernel may act"),
            _ => "holds a character outside of printable ASCII".to_owned(),
        };
        return Some((why, "write it without"));
    }
    if argument.contains("${") {
        return fault("holds ${, which iPXE would expand", "write the value itself");
    }
    if argument.starts_with('-') {
        return fault("starts with -, which the kernel would hand to init", "remove it");
    }
    if RESERVED.iter().any(|own| argument.starts_with(own)) {
        return fault("is set by pxed itself", "remove it");
    }
    None
}

fn is_allowed(sign: char) -> bool {
    sign.is_ascii_graphic() && !REFUSED.contains(&sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_loader_or_kernel_would_act_on_are_rejected() {
        for bad in [
            "",
            "a b",
            "x=${mac}",
            "||",
            "a||b",
            "&&",
            ";",
            "a;b",
            "#x",
            "a#b",
            "a\nboot",
            "a\tb",
            "a\\",
            "a=\"b",
            "a='b",
            "a=`b`",
            "ü",
            "\u{7f}",
            "--",
            "-s",
            "bedplate.url=http://evil",
            "bedplate.anything",
            "initrd=x",
        ] {
            assert!(fault(bad).is_some(), "{bad:?}");
        }
        assert!(fault(&"x".repeat(MAX_BYTES + 1)).unwrap().0.contains("1024"));
    }

    #[test]
    fn common_kernel_arguments_are_accepted() {
        for good in [
            "quiet",
            "console=ttyS0,115200n8",
            "root=UUID=0b1f7e2c-5d1e-4a1f-8d3c-2f6a9d3b7c10",
            "usbcore.quirks=0bda:8153:k",
            "rd.break=pre-mount",
            "ip=10.7.0.21::10.7.0.1:255.255.255.0:node-1:eth0:off",
            "ip=[fd00::1]",
            "mitigations=auto,nosmt",
            "memmap=4G!12G",
            "memmap=64K$0x18690000",
            "crashkernel=512M-2G:64M,2G-:128M@16M",
            "isolcpus=2-7",
            "acpi_osi=!*",
            "x.y=a+b%c~d^e<f>(g){h}?",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
    }
}
