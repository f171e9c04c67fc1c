//! Copies of the audit outside of the cluster: to a file, to syslog and to a web server, each of which fails in the middle.

use crate::common::{Dev, Said, alone, signal};
use crate::waiting::wait_for;
use muster_cli::audit_export::{Line, Outgoing, SignedHead};
use muster_control_core::audit_link;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

/// What a receiver has taken.
type Taken = Arc<Mutex<Vec<String>>>;

/// JSON lines without the signed heads.
fn without_heads<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    lines.into_iter().filter(|line| !SignedHead::is_in(line.as_bytes())).collect()
}

/// The numbers of the records among JSON lines.
fn numbers<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<u64> {
    let records = without_heads(lines);
    records.iter().map(|line| Line::parse(line.as_bytes()).expect("a record").number).collect()
}

/// That these are all numbers from `first` on, in order, some of them perhaps again; the last.
fn check_no_gap(found: &[u64], first: u64) -> u64 {
    let mut next = first;
    for number in found {
        assert!(*number <= next, "record {next} is missing before {number}: {found:?}");
        next = next.max(number + 1);
    }
    next - 1
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).expect("a file")
}

/// The newest record of the cluster.
fn newest(dev: &Dev) -> u64 {
    dev.run(&["audit", "list", "--limit", "1", "-o", "json"]).json()[0]["number"].as_u64().expect("a number")
}

fn some_change(dev: &Dev, user: &str) {
    dev.ok(&["grant", "add", &format!("user:{user}"), "viewer", "dev"]);
}

#[test]
fn every_record_leaves_the_cluster_whatever_breaks_in_the_middle() {
    let dev = Dev::start(&["--nodes", "1"]);
    for number in 0..12 {
        some_change(&dev, &format!("user-{number}"));
    }
    to_a_file(&dev);
    heads_are_signed(&dev);
    forged_files_are_found(&dev);
    to_syslog(&dev);
    to_a_web_server(&dev);
    what_makes_no_sense_is_refused(&dev);
    following(&dev);
}

fn to_a_file(dev: &Dev) {
    let path = dev.path("audit.jsonl").display().to_string();
    let to = format!("file:{path}");
    dev.ok(&["audit", "export", "--to", &to]);
    let whole = read(&path);
    let count = check_no_gap(&numbers(whole.lines()), 1);
    assert!(count >= 12 && count as usize + 1 == whole.lines().count(), "one head is signed: {whole}");
    assert!(whole.contains("Auth.Grant") && whole.contains("user:user-11"), "{whole}");
    dev.ok(&["audit", "verify", "--file", &path, "--against-cluster"]);

    // A crash in the middle of a line.
    let records = without_heads(whole.lines());
    let cut = &records[records.len() - 1][..100];
    std::fs::write(&path, format!("{}\n{cut}", records[..records.len() - 1].join("\n"))).expect("a file");
    let whole = format!("{}\n", records.join("\n"));
    let said = dev.run(&["audit", "verify", "--file", &path]);
    assert!(said.code == 0 && said.err.contains(&format!("line {count}: the line is not whole")), "{}", said.err);
    let said = dev.run(&["audit", "export", "--to", &to]);
    assert!(said.code == 0 && said.err.contains("was not whole"), "{}", said.err);
    assert!(read(&path).starts_with(&whole), "the same lines as before, each once");
    some_change(dev, "another");
    dev.ok(&["audit", "export", "--to", &to]);
    let longer = read(&path);
    assert!(longer.starts_with(&whole) && longer.contains("user:another"), "{longer}");
    let said = dev.ok(&["audit", "verify", "--file", &path, "--against-cluster"]);
    assert!(said.contains("is the cluster's"), "{said}");
    // What has been signed is not signed again.
    dev.ok(&["audit", "export", "--to", &to]);
    let again = read(&path);
    assert!(again == longer || numbers(again.lines()).len() > numbers(longer.lines()).len(), "{again}");

    // From the middle on, checked against the record before it.
    let later = dev.path("later.jsonl").display().to_string();
    dev.ok(&["audit", "export", "--to", &format!("file:{later}"), "--from", "5"]);
    check_no_gap(&numbers(read(&later).lines()), 5);
    let said = dev.ok(&["audit", "verify", "--file", &later]);
    assert!(said.contains("begins with record 5"), "{said}");
    // What was given once may stay in a unit file, and a file has no gaps.
    dev.ok(&["audit", "export", "--to", &format!("file:{later}"), "--from", "5"]);
    check_no_gap(&numbers(read(&later).lines()), 5);
    dev.refused(
        &["audit", "export", "--to", &format!("file:{later}"), "--from", "5000"],
        2,
        &["from: is 5000", "gaps"],
    );
}

fn heads_are_signed(dev: &Dev) {
    let path = dev.path("audit.jsonl").display().to_string();
    let roots = dev.path("dev/identities/ca/roots.pem").display().to_string();
    let later = dev.path("later.jsonl").display().to_string();
    // The configuration of the cluster names its roots.
    for args in [&[&*path][..], &[&*path, "--roots", &*roots], &[&*later, "--roots", &*roots]] {
        let said = dev.ok(&[&["audit", "verify", "--file"], args].concat());
        assert!(said.contains(", by control node") && said.contains("of cluster dev"), "{said}");
    }
    let said: Said = alone(&["audit", "verify", "--file", &path], &dev.path("")).output().expect("muster").into();
    assert!(said.code == 0 && said.out.contains("signatures were not checked: give"), "{}{}", said.out, said.err);

    let whole = read(&path);
    let lines: Vec<&str> = whole.lines().collect();
    let at = lines.iter().position(|line| SignedHead::is_in(line.as_bytes())).expect("a signed head");
    let head = SignedHead::parse(lines[at].as_bytes()).expect("a signed head");
    let line = format!("line {}: ", at + 1);
    let check = |change: &dyn Fn(&mut SignedHead), words: &str| {
        let mut forged = head.clone();
        change(&mut forged);
        let json = forged.outgoing().expect("a line").json;
        let mut forged = lines.clone();
        forged[at] = &json;
        let file = dev.file("forged.jsonl", &format!("{}\n", forged.join("\n")));
        dev.refused(&["audit", "verify", "--file", &file, "--roots", &roots], 1, &[&*line, words]);
    };
    check(&|head| head.head.hash[0] ^= 1, "the hash in the signed head is not that of record");
    check(&|head| head.head.number += 1, "and the record before it is");
    check(&|head| head.at_ms += 1, "the signature is not by the key of the certificate");
    check(&|head| head.signed.signature[20] ^= 1, "the signature is not by the key of the certificate");
    check(&|head| head.signed.chain.truncate(1), "does not lead to a root");

    let other = dev.path("other").display().to_string();
    dev.ok(&["ca", "init", "dev", "--out", &other]);
    let others = format!("{other}/roots.pem");
    let words = [&*line, "does not lead to a root"];
    dev.refused(&["audit", "verify", "--file", &path, "--roots", &others], 1, &words);

    // Whoever asks for signatures is told that there are none.
    let file = dev.file("unsigned.jsonl", &format!("{}\n", without_heads(whole.lines()).join("\n")));
    let said = dev.ok(&["audit", "verify", "--file", &file]);
    assert!(said.contains("none of its heads is signed"), "{said}");
    dev.refused(&["audit", "verify", "--file", &file, "--roots", &roots], 1, &["none of its heads is signed"]);
}

fn forged_files_are_found(dev: &Dev) {
    let whole = read(&dev.path("audit.jsonl").display().to_string());
    let lines: Vec<&str> = whole.lines().collect();
    let check = |lines: &[&str], words: &[&str]| {
        let path = dev.file("forged.jsonl", &format!("{}\n", lines.join("\n")));
        dev.refused(&["audit", "verify", "--file", &path], 1, words);
        path
    };
    let at = lines.iter().position(|line| line.contains("user:user-7 ")).expect("the grant");
    let mut altered = lines.clone();
    let forged = lines[at].replace("user:user-7 ", "user:user-8 ");
    altered[at] = &forged;
    check(&altered, &[&format!("line {}: ", at + 1), &format!("the hash of record {} does not follow", at + 1)]);
    let mut missing = lines.clone();
    missing.remove(at);
    check(&missing, &[&format!("record {} follows record {at}, so some are missing", at + 2)]);
    let mut twice = lines.clone();
    twice.insert(at, lines[at]);
    check(&twice, &[&format!("record {} follows record {}", at + 1, at + 1)]);
    let mut other = lines.clone();
    other[at] = "{\"number\":1}";
    check(&other, &[&format!("after record {at}: it is no record")]);
    check(&[], &["it is no record"]);

    // A forger who makes the hashes anew is found by the cluster's own record.
    let lines = without_heads(lines);
    let mut records: Vec<_> = lines.iter().map(|line| Line::parse(line.as_bytes()).expect("a record")).collect();
    records[at].target = records[at].target.replace("user:user-7", "user:user-8");
    for next in at..records.len() {
        records[next].hash = audit_link(&records[next - 1].hash, &records[next]);
    }
    let forged: String =
        records.iter().map(|record| format!("{}\n", Outgoing::new(record).expect("a line").json)).collect();
    let path = dev.file("forged.jsonl", &forged);
    let last = records.len();
    dev.ok(&["audit", "verify", "--file", &path]);
    let words = [&*format!("record {last} of the audit"), "is not the one in the cluster"];
    dev.refused(&["audit", "verify", "--file", &path, "--against-cluster"], 1, &words);
    let words = [&*format!("record {last} of the audit is not the one that was exported"), "rewritten"];
    dev.refused(&["audit", "export", "--to", &format!("file:{path}")], 1, &words);
    assert_eq!(read(&path), forged, "nothing was appended");
}

/// Serves each connection with the next of these, the last one for ever.
fn serve(receive: &'static [fn(&mut TcpStream, &Taken)]) -> (String, Taken) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let taken = Taken::default();
    let kept = Arc::clone(&taken);
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            receive[at.min(receive.len() - 1)](&mut stream.expect("a connection"), &kept);
        }
    });
    (address, taken)
}

/// Takes the messages of a connection, each with its length before it.
fn take_messages(stream: &mut impl Read, taken: &Taken) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = Vec::new();
        reader.read_until(b' ', &mut length).expect("a length");
        let Some(length) = String::from_utf8(length).ok().and_then(|text| text.trim_end().parse::<usize>().ok()) else {
            return;
        };
        let mut message = vec![0; length];
        if reader.read_exact(&mut message).is_err() {
            return;
        }
        let message = String::from_utf8(message).expect("text");
        let (head, json) = message.split_once(" muster - audit - ").expect("the head");
        assert!(head.starts_with("<110>1 2"), "{head}");
        taken.lock().expect("a lock").push(json.to_owned());
    }
}

fn to_syslog(dev: &Dev) {
    // The first connection ends in the middle of a message, the second one before anything was read.
    let (address, taken) = serve(&[
        |stream, taken| take_messages(&mut stream.take(1_000), taken),
        |_, _| {},
        |stream, taken| take_messages(stream, taken),
    ]);
    let position = dev.path("syslog.position").display().to_string();
    let export = ["audit", "export", "--to", &format!("syslog:{address}"), "--position", &position];
    let said = dev.run(&export);
    assert!(
        said.code == 0 && said.err.contains("trying again") && said.err.contains("takes records again"),
        "{}",
        said.err
    );
    let found = |taken: &Taken| numbers(taken.lock().expect("a lock").iter().map(String::as_str));
    let last = check_no_gap(&found(&taken), 1);
    assert!(last >= 13 && found(&taken).len() as u64 > last, "what the first connection took comes again");
    assert!(taken.lock().expect("a lock").iter().any(|line| SignedHead::is_in(line.as_bytes())), "a signed head");
    assert!(read(&position).contains(&format!("\"number\":{last},")), "{}", read(&position));

    // The next export goes on where this one has ended.
    taken.lock().expect("a lock").clear();
    some_change(dev, "syslog");
    dev.ok(&export);
    let more = found(&taken);
    assert_eq!(more.first(), Some(&(last + 1)));
    let last = check_no_gap(&more, last + 1);

    // A position of another history is no position of this one.
    let text = read(&position);
    let hash = &text[text.find("\"hash\":\"").expect("a hash") + 8..][..8];
    std::fs::write(&position, text.replace(hash, "00000000")).expect("a file");
    dev.refused(&export, 1, &[&format!("record {last} of the audit is not the one that was exported")]);
}

/// Reads a request, and answers it; its body.
fn answer(stream: &mut TcpStream, status: &str) -> String {
    let mut reader = BufReader::new(&mut *stream);
    let (mut length, mut authorized) = (0, false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).expect("a header");
        let header = header.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        authorized |= header == "authorization: bearer s3cret";
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    assert!(authorized, "the header Authorization");
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwhy\n");
    stream.write_all(head.as_bytes()).expect("an answer");
    String::from_utf8(body).expect("text")
}

fn take_request(stream: &mut TcpStream, taken: &Taken) {
    let body = answer(stream, "200 OK");
    taken.lock().expect("a lock").extend(body.lines().map(str::to_owned));
}

fn to_a_web_server(dev: &Dev) {
    let token = dev.file("receiver.token", "Bearer s3cret\n");
    let (address, taken) = serve(&[
        |stream, _| drop(answer(stream, "500 Internal Server Error")),
        |_, _| {},
        |stream, _| drop(answer(stream, "503 Service Unavailable")),
        take_request,
    ]);
    let position = dev.path("post.position").display().to_string();
    let to = format!("http://{address}/in?key=s3cret");
    let export = ["audit", "export", "--to", &to, "--position", &position, "--authorization-file", &token];
    let said = dev.run(&export);
    assert!(said.code == 0 && said.err.contains("500 Internal Server Error: why; trying again"), "{}", said.err);
    assert!(!said.err.contains("s3cret") && !said.out.contains("s3cret"), "{}{}", said.out, said.err);
    let lines = taken.lock().expect("a lock").clone();
    let found = numbers(lines.iter().map(String::as_str));
    let last = check_no_gap(&found, 1);
    assert_eq!(found.len() as u64, last, "a batch that was refused is not taken, and each comes once");
    let file = dev.file("received.jsonl", &format!("{}\n", lines.join("\n")));
    let said = dev.ok(&["audit", "verify", "--file", &file, "--against-cluster"]);
    assert!(said.contains("1 signed head, by control node"), "{said}");

    // What will not get better ends the export, and its position stays.
    some_change(dev, "post");
    let before = read(&position);
    let (address, _) = serve(&[|stream, _| drop(answer(stream, "403 Forbidden"))]);
    let to = format!("http://{address}/in");
    let export = ["audit", "export", "--follow", "--to", &to, "--position", &position, "--authorization-file", &token];
    dev.refused(&export, 1, &["the receiver does not take the audit: it answers 403 Forbidden: why"]);
    assert_eq!(read(&position), before);
}

fn what_makes_no_sense_is_refused(dev: &Dev) {
    let refused =
        |args: &[&str], words: &[&str]| drop(dev.refused(&[&["audit", "export", "--to"], args].concat(), 2, words));
    refused(&["syslog:127.0.0.1:601"], &["position: is missing", "name a file"]);
    refused(&["http://logs.example.com/"], &["use https"]);
    refused(&["file:x", "--position", "y"], &["position: is not used with file:"]);
    refused(&["file:x", "--ca-file", "y"], &["ca-file: is for https alone"]);
    let new = format!("file:{}", dev.path("new.jsonl").display());
    refused(&[&new, "--from", "100000"], &["--from: is 100000", "ends with record"]);
}

fn following(dev: &Dev) {
    let path = dev.path("followed.jsonl").display().to_string();
    let args = ["audit", "export", "--follow", "--timeout", "1s", "--to", &format!("file:{path}")];
    let log = dev.path("export.log").display().to_string();
    let stderr = std::fs::File::create(&log).expect("a log");
    let start = || {
        let mut command = dev.command(&args);
        command.stdout(Stdio::piped()).stderr(stderr.try_clone().expect("a log")).spawn().expect("an export")
    };
    let has = |user: &str| std::fs::read_to_string(&path).is_ok_and(|text| text.contains(user));
    let export = start();
    wait_for("the first records", || has("user:user-11"));
    wait_for("a signed head", || has("signed_head"));
    dev.refused(&["audit", "export", "--to", &format!("file:{path}")], 5, &["another process writes"]);

    // Whatever instant it is killed at, the next one goes on.
    some_change(dev, "before-the-kill");
    signal(&export, Signal::SIGKILL);
    export.wait_with_output().expect("its end");
    let export = start();
    wait_for("records after the kill", || has("user:before-the-kill"));

    // The cluster does not answer for a while.
    let control = dev.roles().into_iter().find(|role| role.endpoint.is_some()).expect("a control node");
    let pid = Pid::from_raw(control.pid);
    nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("it stops");
    wait_for("that it is missed", || read(&log).contains("trying again"));
    nix::sys::signal::kill(pid, Signal::SIGCONT).expect("it goes on");
    wait_for("that it is back", || dev.run(&["grant", "add", "user:afterwards", "viewer", "dev"]).code == 0);
    wait_for("records afterwards", || has("user:afterwards"));
    assert!(read(&log).contains("the cluster answers again"), "{}", read(&log));

    signal(&export, Signal::SIGTERM);
    let output = export.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("exported ") && said.contains("the last is"), "{said}");
    let text = read(&path);
    let last = check_no_gap(&numbers(text.lines()), 1);
    assert!(last as usize == numbers(text.lines()).len() && last <= newest(dev), "each record is there once");
    let said = dev.ok(&["audit", "verify", "--file", &path, "--against-cluster"]);
    assert!(said.contains(", by control node"), "{said}");
}
