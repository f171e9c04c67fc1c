//! What is written in one form is read as the same, and nothing is lost by writing an older one.

use super::*;
use crate::consensus::stored::{decode, encode, encode_raised, fits};
use muster_model::ids::{JobId, TenantId};
use muster_model::object::{RequestFloor, RequestRecord};
use muster_model::{Change, Object};
use serde::{Deserialize, Serialize};

fn request(issued_ms: u64, tenant: u64) -> Object {
    Object::Request(RequestRecord {
        id: "r-1".into(),
        payload_hash: 7,
        accepted_ms: 1_000,
        first_job: JobId(3),
        jobs: 2,
        issued_ms,
        tenant: TenantId(tenant as u32),
    })
}

#[test]
fn what_an_older_form_lacks_has_its_default_wherever_it_stands() {
    // Twice, so that what follows a shortened value must be found where it begins.
    let value = vec![Change::put(request(0, 0)), Change::put(request(0, 0))];
    let old = encode(OLDEST, &value);
    assert_eq!(decode::<Vec<Change>>(&old), Ok(value.clone()));
    assert!(old.len() < encode(NEWEST, &value).len(), "two fields are left out, twice");
}

#[test]
fn what_an_older_form_cannot_hold_is_refused_by_its_name() {
    let lacking = |of, name| Err(Lacking { of, name, form: 5 });
    assert_eq!(fits(OLDEST, &request(0, 0)), Ok(()));
    assert_eq!(fits(OLDEST, &request(900, 0)), lacking("RequestRecord", "issued_ms"));
    assert_eq!(fits(OLDEST, &request(0, 4)), lacking("RequestRecord", "tenant"));
    let floor = Object::RequestFloor(RequestFloor { tenant: "research".to_owned(), issued_ms: 0 });
    assert_eq!(fits(OLDEST, &floor), lacking("Object", "RequestFloor"));
    assert_eq!(fits(NEWEST, &floor), Ok(()));
    // Such a value can only be there because the level was raised: it is written in the form that it needs.
    let raised = encode_raised(OLDEST, &floor);
    assert_eq!((raised.first(), decode::<Object>(&raised)), (Some(&5), Ok(floor)));
}

/// Every kind of thing that serde knows, none of it new: both ways through the older form are postcard's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Everything {
    flag: bool,
    numbers: (i8, i16, i32, i64, u8, u16, u32, u64, u128),
    real: f64,
    letter: char,
    text: String,
    maybe: Option<Box<Everything>>,
    list: Vec<Kind>,
    map: std::collections::BTreeMap<String, (u64, Kind)>,
    nothing: (),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Plain,
    Wrapped(String),
    Pair(u8, String),
    Named { a: u64, b: Option<String> },
}

#[test]
fn whatever_is_not_new_is_written_and_read_as_postcard_would() {
    let kinds = vec![
        Kind::Plain,
        Kind::Wrapped("w".to_owned()),
        Kind::Pair(3, "p".to_owned()),
        Kind::Named { a: 300, b: Some("n".to_owned()) },
    ];
    let inner = Everything {
        flag: true,
        numbers: (-1, -2, -3, -4, 5, 6, 7, 8, 9),
        real: 1.5,
        letter: 'ä',
        text: "text".to_owned(),
        maybe: None,
        map: kinds.iter().enumerate().map(|(at, kind)| (format!("k{at}"), (at as u64, kind.clone()))).collect(),
        list: kinds,
        nothing: (),
    };
    let value = Everything { maybe: Some(Box::new(inner.clone())), ..inner };
    let plain = postcard::to_stdvec(&value).expect("serialises");
    assert_eq!(write(OLDEST, &value, Vec::new()), Ok(plain.clone()));
    assert_eq!(read::<Everything>(OLDEST, &plain), Ok(value));
}
