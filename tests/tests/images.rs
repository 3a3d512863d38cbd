//! Tests of the delivered images and systemd units without a boot.

mod images {
    mod host;
    mod node;
    mod units;
}
