//! Pure: bounded texts for messages. Callers: the steps of the deletion.

/// Maximum number of names in a list.
pub(super) const MAX_NAMES: usize = 5;
/// Maximum number of characters of a name.
const MAX_NAME_CHARACTERS: usize = 150;
/// Maximum number of characters of a text from another program.
const MAX_TEXT_CHARACTERS: usize = 200;

/// Returns sorted names, at most [`MAX_NAMES`], and the number of the others. `more`: number of further names.
pub(super) fn names<S: AsRef<str>>(names: &[S], more: usize) -> String {
    let mut names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    names.sort_unstable();
    let more = more + names.len().saturating_sub(MAX_NAMES);
    let shown: Vec<String> =
        names.into_iter().take(MAX_NAMES).map(|name| cut(name, MAX_NAME_CHARACTERS)).collect();
    match more {
        0 => shown.join(", "),
        more if shown.is_empty() => format!("{more} more"),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns a text of another program in one line, bounded.
pub(super) fn text(text: &str) -> String {
    let line: Vec<&str> = text.split_whitespace().collect();
    cut(&line.join(" "), MAX_TEXT_CHARACTERS)
}

/// Returns at most this number of characters.
pub(super) fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m9_names_are_sorted_and_at_most_five() {
        assert_eq!(names(&["b", "a"], 0), "a, b");
        assert_eq!(names(&["7", "6", "5", "4", "3", "2", "1"], 1), "1, 2, 3, 4, 5 and 3 more");
        assert_eq!(names::<&str>(&[], 2), "2 more");
        assert_eq!(names(&["x".repeat(500)], 0).chars().count(), MAX_NAME_CHARACTERS);
    }

    #[test]
    fn m9_foreign_text_is_one_bounded_line() {
        assert_eq!(text("a\n  b"), "a b");
        assert_eq!(text(&"x".repeat(5000)).chars().count(), MAX_TEXT_CHARACTERS);
    }
}
