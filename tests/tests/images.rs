//! The images and systemd units that are delivered, looked at without a boot.

mod images {
    mod host;
    mod node;
    mod units;
}
