//! The laws of the authority's certificates, judged by the TLS library that their readers use.

use std::fs;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use data_encoding::BASE64;
use rcgen::PKCS_ED25519;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError as Wrong, Error, RootCertStore};
use x509_parser::certificate::X509Certificate;

use super::*;

fn authority() -> Authority {
    let key = make_key().unwrap();
    let pem = self_sign(&key, "test", SystemTime::now()).unwrap();
    Authority::of(&pem, &key).unwrap().unwrap()
}

fn csr(params: &CertificateParams) -> String {
    params.serialize_request(&new_key("x").unwrap()).unwrap().pem().unwrap()
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut store = RootCertStore::empty();
    store.add(der(authority.certificate_pem())).unwrap();
    Arc::new(store)
}

fn at(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(UNIX_EPOCH).unwrap())
}

/// Checks a certificate as a client does with a server that it dialled by a name.
fn serves(authority: &Authority, pem: &str, name: &str, time: SystemTime) -> Result<(), Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(&der(pem), &[], &name, &[], at(time)).map(|_| ())
}

/// Checks a certificate as an agent does with a caller.
fn calls(authority: &Authority, pem: &str, time: SystemTime) -> Result<(), Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    verifier.verify_client_cert(&der(pem), &[], at(time)).map(|_| ())
}

fn with<T>(pem: &str, look: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
    let der = der(pem);
    look(&parse_x509_certificate(&der).unwrap().1)
}

#[test]
fn an_agents_certificate_serves_one_name_and_opens_nothing() {
    let (authority, now, id) = (authority(), SystemTime::now(), Uuid::new_v4());
    let issued = authority.sign_agent(&csr(&CertificateParams::default()), "host1", id, now).unwrap();
    let name = agent_server_name(id);
    assert_eq!(serves(&authority, &issued.certificate, &name, now), Ok(()));
    let other = agent_server_name(Uuid::new_v4());
    for wrong in [other.as_str(), "host1", CONTROLLER_NAME, "agents.mooring.invalid"] {
        assert!(serves(&authority, &issued.certificate, wrong, now).is_err(), "{wrong}");
    }
    assert!(calls(&authority, &issued.certificate, now).is_err(), "it is no caller's");
    with(&issued.certificate, |found| {
        assert_eq!(found.subject().to_string(), "CN=host1");
        assert!(!found.is_ca());
        let names = found.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 1);
    });
}

#[test]
fn a_callers_certificate_calls_and_serves_nothing() {
    let (authority, now) = (authority(), SystemTime::now());
    let client = authority.sign_client(&make_key().unwrap(), now).unwrap();
    assert_eq!(calls(&authority, &client.certificate, now), Ok(()));
    assert!(serves(&authority, &client.certificate, CONTROLLER_NAME, now).is_err());
    let names = ["controller1".to_owned(), "192.0.2.7".to_owned(), "fd00::7".to_owned()];
    let key = make_key().unwrap();
    let server = authority.sign_server(&key, &names, now).unwrap();
    for name in &names {
        assert_eq!(serves(&authority, &server.certificate, name, now), Ok(()), "{name}");
    }
    assert!(serves(&authority, &server.certificate, "192.0.2.8", now).is_err());
    assert!(calls(&authority, &server.certificate, now).is_err());
    for wrong in ["", "a b", "ä", "*", "x_y/"] {
        let refused = authority.sign_server(&key, &[wrong.to_owned()], now);
        assert!(matches!(refused, Err(AuthorityError::Name { .. })), "{wrong}");
    }
}

#[test]
fn a_certificate_lives_for_ninety_six_days() {
    let (authority, now) = (authority(), SystemTime::now());
    let id = Uuid::new_v4();
    let issued = authority.sign_agent(&csr(&CertificateParams::default()), "a", id, now).unwrap();
    assert_eq!(issued.expires_at, now + CERTIFICATE_LIFE);
    let name = agent_server_name(id);
    let minute = Duration::from_mins(1);
    let good = |time| serves(&authority, &issued.certificate, &name, time);
    assert_eq!(good(issued.expires_at - minute), Ok(()));
    assert_eq!(good(now - Duration::from_mins(59)), Ok(()), "a clock that is behind");
    let late = good(issued.expires_at + minute);
    assert!(matches!(late, Err(Error::InvalidCertificate(Wrong::ExpiredContext { .. }))), "{late:?}");
    assert!(good(now - Duration::from_mins(61)).is_err());
}

#[test]
fn nothing_that_a_request_asks_for_is_granted() {
    let (authority, now, id) = (authority(), SystemTime::now(), Uuid::new_v4());
    let mut asked = CertificateParams::new(vec![CONTROLLER_NAME.to_owned()]).unwrap();
    asked.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    asked.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    asked.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1])];
    asked.distinguished_name.push(DnType::CommonName, "Mooring controller");
    let issued = authority.sign_agent(&csr(&asked), "host1", id, now).unwrap();
    with(&issued.certificate, |found| {
        assert_eq!(found.subject().to_string(), "CN=host1");
        let usage = found.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth && usage.other.is_empty());
        assert!(!found.key_usage().unwrap().unwrap().value.key_cert_sign());
        assert!(!found.is_ca());
    });
    assert!(calls(&authority, &issued.certificate, now).is_err());
    assert!(serves(&authority, &issued.certificate, CONTROLLER_NAME, now).is_err());
}

#[test]
fn a_request_of_another_key_or_with_a_wrong_signature_is_refused() {
    let authority = authority();
    let good = csr(&CertificateParams::default());
    let bytes = CertificateSigningRequestDer::from_pem_slice(good.as_bytes()).unwrap();
    let pem = |bytes: &[u8]| {
        let text = BASE64.encode(bytes);
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
    };
    // Each bit of the signature's last bytes counts.
    let mut forged = bytes.to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let mut longer = bytes.to_vec();
    longer.push(0);
    let ed25519 = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let ed25519 = CertificateParams::default().serialize_request(&ed25519).unwrap().pem().unwrap();
    for (text, word) in [
        (pem(&forged), "signature"),
        (pem(&longer), "follows"),
        (pem(&bytes[..bytes.len() - 1]), "PKCS#10"),
        (ed25519, "P-256"),
        (String::new(), "PEM"),
        ("no PEM".to_owned(), "PEM"),
        (authority.certificate_pem().to_owned(), "PEM"),
        (make_key().unwrap(), "PEM"),
    ] {
        let refused = authority.sign_agent(&text, "a", Uuid::nil(), SystemTime::now()).unwrap_err();
        assert!(matches!(refused, AuthorityError::Request { .. }), "{refused:?}");
        assert!(refused.to_string().contains(word), "{refused}: {word}");
    }
    assert!(authority.sign_agent(&pem(&bytes), "a", Uuid::nil(), SystemTime::now()).is_ok());
}

#[test]
fn the_authority_is_loaded_from_its_own_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let key = make_key().unwrap();
    let pem = self_sign(&key, "test", SystemTime::now()).unwrap();
    let (cert, key) = (file("a.crt", &pem), file("a.key", &key));
    let loaded = Authority::load(&cert, &key).unwrap();
    assert_eq!(loaded.certificate_pem(), pem);
    assert_eq!(loaded.pin(), certificates::pin(&pem).unwrap());
    assert_eq!(loaded.pin().len(), "sha256:".len() + 64);
    // The pin is the key's: a new certificate over the key has the same pin, another authority has
    // another.
    let again = self_sign(&fs::read_to_string(&key).unwrap(), "other", SystemTime::now()).unwrap();
    assert_eq!(certificates::pin(&again).unwrap(), loaded.pin());
    assert_ne!(authority().pin(), loaded.pin());
    // Whoever trusts the authority trusts what it signs after a reload.
    let now = SystemTime::now();
    let leaf_key = make_key().unwrap();
    let client = loaded.sign_client(&leaf_key, now).unwrap();
    assert_eq!(calls(&loaded, &client.certificate, now), Ok(()));
    assert!(calls(&authority(), &client.certificate, now).is_err());

    let (leaf, leaf_key) = (file("l.crt", &client.certificate), file("l.key", &leaf_key));
    let none = dir.path().join("none");
    for (loaded, word) in [
        (Authority::load(&none, &key), "mooring-controller init"),
        (Authority::load(&cert, &none), "mooring-controller init"),
        (Authority::load(&leaf, &leaf_key), "may not sign"),
        (Authority::load(&cert, &leaf_key), "cannot be used"),
        (Authority::load(&key, &key), "cannot be used"),
    ] {
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains("PRIVATE"), "{error}");
    }
}

#[test]
fn a_certificate_renewed_at_two_thirds_of_its_life_keeps_names_and_key() {
    let (authority, now, key) = (authority(), SystemTime::now(), make_key().unwrap());
    let names = ["controller1".to_owned(), "192.0.2.7".to_owned(), "fd00::7".to_owned()];
    let server = authority.sign_server(&key, &names, now).unwrap().certificate;
    let client = authority.sign_client(&key, now).unwrap().certificate;
    let (early, due) =
        (now + CERTIFICATE_LIFE * 2 / 3 - Duration::from_hours(2), now + CERTIFICATE_LIFE * 2 / 3);
    for pem in [&server, &client] {
        assert_eq!(authority.renew(pem, &key, early).unwrap(), None);
        // An expired certificate is renewed, too: the machine may have been off for long.
        for time in [due, now + 2 * CERTIFICATE_LIFE] {
            let renewed = authority.renew(pem, &key, time).unwrap().unwrap();
            assert_eq!(renewed.expires_at, time + CERTIFICATE_LIFE);
            assert!(certificates::fits(&renewed.certificate, &key));
            assert_eq!(calls(&authority, &renewed.certificate, time).is_ok(), pem == &client);
            for name in &names {
                assert_eq!(
                    serves(&authority, &renewed.certificate, name, time).is_ok(),
                    pem == &server,
                    "{name}"
                );
            }
        }
    }
    // The operator renews the operator's own certificate.
    assert_eq!(self::authority().renew(&server, &key, due).unwrap(), None);
    assert_eq!(authority.renew("no certificate", &key, due).unwrap(), None);
    assert_eq!(authority.renew(authority.certificate_pem(), &key, now + AUTHORITY_LIFE).unwrap(), None);
}

#[test]
fn a_certificate_of_a_former_authority_is_renewed_at_once() {
    let now = SystemTime::now();
    let keys = [(); 2].map(|()| make_key().unwrap());
    let pems = [0, 1].map(|at: usize| self_sign(&keys[at], "test", now).unwrap());
    let both = pems.concat();
    let [old, new] = [0, 1].map(|at: usize| Authority::of(&both, &keys[at]).unwrap().unwrap());
    assert_eq!(old.pins().iter().rev().cloned().collect::<Vec<_>>(), new.pins());
    let own = make_key().unwrap();
    let names = ["controller1".to_owned()];
    for certificate in [old.sign_server(&own, &names, now).unwrap(), old.sign_client(&own, now).unwrap()] {
        assert_eq!(old.renew(&certificate.certificate, &own, now).unwrap(), None, "it is not due");
        assert_eq!(new.signer_of(&certificate.certificate), Some(old.pin()));
        let renewed = new.renew(&certificate.certificate, &own, now).unwrap().unwrap();
        assert_eq!(new.signer_of(&renewed.certificate), Some(new.pin()));
        assert_eq!(new.renew(&renewed.certificate, &own, now).unwrap(), None, "once is enough");
    }
    let stranger = authority().sign_client(&own, now).unwrap();
    assert_eq!(new.signer_of(&stranger.certificate), None);
    assert_eq!(new.renew(&stranger.certificate, &own, now + 2 * CERTIFICATE_LIFE).unwrap(), None);
    assert!(Authority::of(&pems[0], &keys[1]).unwrap().is_none(), "no certificate of that key");
}
