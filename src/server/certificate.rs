//! The certificate of the TLS listener, which can be read again while it is in use.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, ServerConfig as TlsConfig};

use crate::config::{ConfigError, TlsFiles};

/// Certificate and key in use. Cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Certificate {
    files: TlsFiles,
    current: Arc<Current>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads certificate and key.
    pub(super) fn read(files: &TlsFiles) -> Result<Self, ConfigError> {
        let current = Arc::new(Current(RwLock::new(Arc::new(read(files)?))));
        Ok(Self { files: files.clone(), current })
    }

    /// Reads the files again. Connections that begin from now on are shown what they hold; those that are open go on.
    ///
    /// # Errors
    /// Changes nothing where certificate or key cannot be used; names the setting and its value.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let fresh = Arc::new(read(&self.files)?);
        // Nothing panics while it is held.
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The versions are TLS 1.2 and 1.3; which HTTP is spoken is agreed with the client (ALPN).
    pub(super) fn tls_config(&self) -> Result<TlsConfig, ConfigError> {
        let builder = TlsConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|error| refused("tls_cert_file", &self.files.cert, error.to_string()))?;
        Ok(builder.with_no_client_auth().with_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>))
    }
}

struct Current(RwLock<Arc<CertifiedKey>>);

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn read(files: &TlsFiles) -> Result<CertifiedKey, ConfigError> {
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refused("tls_cert_file", &files.cert, pem_reason(&error, "no certificate in PEM form")))?;
    if chain.is_empty() {
        return Err(refused("tls_cert_file", &files.cert, "holds no certificate in PEM form".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| refused("tls_key_file", &files.key, pem_reason(&error, "no private key in PEM form")))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| match error {
        TlsError::InconsistentKeys(_) => {
            refused("tls_key_file", &files.key, format!("is not the key of the certificate in {:?}", files.cert))
        }
        TlsError::InvalidCertificate(_) => refused("tls_cert_file", &files.cert, error.to_string()),
        error => refused("tls_key_file", &files.key, error.to_string()),
    })
}

/// The parser's own texts may quote the file.
fn pem_reason(error: &PemError, nothing: &str) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        _ => format!("holds {nothing}"),
    }
}

fn refused(key: &'static str, path: &Path, reason: String) -> ConfigError {
    ConfigError::NamedFile { key, path: path.to_owned(), reason }
}
