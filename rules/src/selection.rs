//! Versions of a configuration, and the choice of a version for each Machine (docs/design/rules.md, H3, H4, C1 to
//! C6, V3).
//!
//! Pure: no clock, no file, no socket, no randomness. Takes the kinds of `bedplate-api` and returns plans as
//! plain data. The caller writes them: `bedplate-controller` in a cluster, pxed when standalone.
//!
//! ```text
//! edit --plan_versions--> version N (may change) --choose: lock, then select--> version N (fixed) --next edit--> version N+1
//! ```

mod choose;
mod claim;
mod reference;
mod selector;
mod template;
mod version;

pub use choose::{Again, Choice, Miss, Pending, Select, choose, reference_changed, repave};
pub use claim::{choose_by_claim, was_granted};
pub use reference::{Hold, Holder, References};
pub use selector::{matches, may_match};
pub use template::means_the_same;
pub use version::{OWN_FINALIZER, Removal, VersionPlan, Write, is_deployed, is_of, plan_versions};
