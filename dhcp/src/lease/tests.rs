//! Claims about the lease table.
