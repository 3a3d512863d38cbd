//! HTTP and TFTP clients against pxed: third-party programs, many machines, and transfers while pxed reloads. No virtual machine.

mod clients {
    mod http;
    mod queue;
    mod reload;
    mod tftp;
}
