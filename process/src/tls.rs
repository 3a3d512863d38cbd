//! The one TLS provider of the process: aws-lc. Never ring, never a second one. Called first thing in `main`.

/// Makes aws-lc the provider of every rustls configuration of this process. A second call changes nothing.
pub fn install_crypto_provider() {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        // Another test has called this function before. There is only one provider in the tree.
        tracing::trace!("crypto provider was installed before");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn provider_may_be_installed_twice() {
        super::install_crypto_provider();
        super::install_crypto_provider();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
