//! Claims about answers.
