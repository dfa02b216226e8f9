//! Tests of authentication, without a network.

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

async fn identify(auth: &Auth, pairs: &[(&'static str, &str)]) -> Result<Identity, AuthRefusal> {
    auth.identify(&headers(pairs), None, None).await
}

fn of(blocks: &[&NewToken]) -> Auth {
    let text: Vec<_> = blocks.iter().map(|new| new.block.as_str()).collect();
    Auth::Tokens(Tokens::parse(&text.join("\n"), "tokens").unwrap())
}

#[tokio::test]
async fn a_new_token_opens_what_its_block_says() {
    let new = NewToken::make("ci \"x\"", "0123abcd", Some("robot"), &["Member"]).unwrap();
    assert!(!new.block.contains(&new.token));
    let auth = of(&[&new]);
    let wanted = Identity {
        project: Some("0123abcd".to_owned()),
        system: false,
        user: "robot".to_owned(),
        roles: vec!["member".to_owned(), "reader".to_owned()],
        admin_project: true,
        service: false,
    };
    assert_eq!(identify(&auth, &[("x-auth-token", &new.token)]).await, Ok(wanted.clone()));
    let bearer = format!("bearer {}", new.token);
    assert_eq!(identify(&auth, &[("authorization", &bearer)]).await, Ok(wanted));
    for pair in [("x-auth-token", "x"), ("authorization", "Bearer x")] {
        assert_eq!(identify(&auth, &[pair]).await, Err(AuthRefusal::UnknownToken));
    }
    for pair in [("x-auth-token", ""), ("authorization", "Basic eDp5"), ("authorization", "B")] {
        assert_eq!(identify(&auth, &[pair]).await, Err(AuthRefusal::NoToken), "{}", pair.1);
    }
    assert!(!format!("{auth:?}").contains("argon2"));
}

#[tokio::test]
async fn a_service_token_is_one_with_that_role() {
    let make = |name, roles: &[&str]| NewToken::make(name, "p", None, roles).unwrap();
    let (user, nova, other) = (make("ann", &["member"]), make("nova", &["service"]), make("bob", &["admin"]));
    let auth = of(&[&user, &nova, &other]);
    let with = async |service: &str| {
        identify(&auth, &[("x-auth-token", &user.token), ("x-service-token", service)]).await
    };
    let seen = with(&nova.token).await.unwrap();
    assert_eq!((seen.user.as_str(), seen.service), ("ann", true));
    assert!(!seen.roles.contains(&"service".to_owned()), "the user gets nothing of the service's roles");
    // An admin's token is valid, and not a service's; an empty header counts as none.
    for service in [&other.token, ""] {
        assert!(!with(service).await.unwrap().service);
    }
    let forged = format!("{}0", &nova.token[..nova.token.len() - 1]);
    for service in ["x", if forged == nova.token { "y" } else { &forged }] {
        assert_eq!(with(service).await, Err(AuthRefusal::UnknownServiceToken), "{service}");
    }
    // A service token alone authenticates nobody.
    assert_eq!(identify(&auth, &[("x-service-token", &nova.token)]).await, Err(AuthRefusal::NoToken));
}

#[tokio::test]
async fn without_authentication_only_localhost_is_served() {
    for (host, local) in [
        ("127.0.0.1:8776", true),
        ("localhost", true),
        ("LOCALHOST:1", true),
        ("[::1]:8776", true),
        ("evil.example", false),
        ("127.0.0.1.evil.example:8776", false),
        ("10.0.0.1:8776", false),
    ] {
        let none = HeaderMap::new();
        assert_eq!(Auth::NoAuth.identify(&none, Some(host), None).await.is_ok(), local, "{host}");
        assert!(Auth::NoAuthAnywhere.identify(&none, Some(host), None).await.is_ok(), "{host}");
    }
    let said = identify(&Auth::NoAuth, &[("x-auth-token", "eve:p1")]).await.unwrap();
    assert_eq!((said.user.as_str(), said.project.as_deref(), said.service), ("eve", Some("p1"), false));
    assert!(Policies::default().makes_admin(&said));
}

#[test]
fn only_an_admin_of_the_system_chooses_a_project() {
    let policies = Policies::default();
    let system = |roles: &[&str]| Identity {
        project: None,
        system: true,
        user: "u".to_owned(),
        roles: roles::tidy(roles),
        admin_project: true,
        service: false,
    };
    let caller = |identity: Identity, project: Option<&str>| {
        identity.caller(&policies, project.map(str::to_owned), "req-1".to_owned())
    };
    assert_eq!(caller(system(&["reader"]), Some("p")), Err(AuthRefusal::Unscoped));
    let admin = caller(system(&["admin"]), Some("p")).unwrap();
    assert_eq!((admin.project.as_str(), admin.admin), ("p", true));
    assert_eq!(caller(system(&["admin"]), None).unwrap().project, "");
    let own = Identity { project: Some("own".to_owned()), system: false, ..system(&["member"]) };
    assert_eq!(caller(own, Some("other")).unwrap().project, "own");
}
