//! The simulated seams do what they say: links, crashes and disks, and the same again from the same seed.

mod disk;

use super::{LinkQuality, SimWorld, run};
use crate::Host;
use crate::disk::{Batch, Kv};
use crate::net::{Admission, Expect};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Service, ServiceExt};

type Request = http::Request<Body>;
type Response = http::Response<Body>;

/// Answers `/toy/echo` with what it is sent, frame by frame, and `/toy/sleep` after a minute.
#[derive(Clone, Default)]
struct Toy {
    /// Handlers of `/toy/sleep` that run.
    asleep: Arc<AtomicUsize>,
    /// Calls that reached a handler.
    calls: Arc<AtomicUsize>,
    /// Frames that handlers passed on.
    frames: Arc<AtomicUsize>,
}

impl tonic::server::NamedService for Toy {
    const NAME: &'static str = "toy";
}

impl Service<Request> for Toy {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let toy = self.clone();
        async move {
            toy.calls.fetch_add(1, Ordering::Relaxed);
            if request.uri().path() == "/toy/sleep" {
                let _asleep = Asleep::count(&toy.asleep);
                sleep(Duration::from_secs(60)).await;
            }
            let frames = toy.frames.clone();
            let counted = request.into_body().map_frame(move |frame| {
                frames.fetch_add(1, Ordering::Relaxed);
                frame
            });
            Ok(Response::new(Body::new(counted)))
        }
        .boxed()
    }
}

struct Asleep(Arc<AtomicUsize>);

impl Asleep {
    fn count(asleep: &Arc<AtomicUsize>) -> Self {
        asleep.fetch_add(1, Ordering::Relaxed);
        Asleep(asleep.clone())
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(host: &Host, toy: &Toy) {
    let routes = tonic::service::Routes::new(toy.clone());
    let serving = host
        .net
        .serve("0.0.0.0:1", routes, Admission::plain(), CancellationToken::new())
        .await
        .expect("the port is free");
    assert_eq!(serving.endpoint, format!("{}:1", host.name));
}

fn code_of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Code {
    error.downcast_ref::<Status>().map_or(Code::Unknown, Status::code)
}

async fn send(from: &Host, path: &str, body: Body) -> Result<Response, Code> {
    let channel = from.net.dial("server:1", Expect::Plain).expect("an endpoint");
    let request = http::Request::builder().uri(format!("http://server{path}")).body(body).expect("a request");
    channel.oneshot(request).await.map_err(|error| code_of(&*error.into_inner()))
}

async fn echo(from: &Host, text: &str) -> Result<Bytes, Code> {
    let body = Body::new(http_body_util::Full::new(Bytes::from(text.to_owned())));
    let answer = send(from, "/toy/echo", body).await?;
    answer.into_body().collect().await.map(|all| all.to_bytes()).map_err(|status| status.code())
}

/// Two hosts, one serving.
async fn pair(world: &SimWorld) -> (Host, Host, Toy) {
    let (client, server, toy) = (world.boot("client"), world.boot("server"), Toy::default());
    serve(&server, &toy).await;
    (client, server, toy)
}

#[test]
fn a_call_takes_time_and_answers() {
    run(1, |world| async move {
        let (client, _server, _) = pair(&world).await;
        let before = Instant::now();
        assert_eq!(echo(&client, "hello").await, Ok(Bytes::from("hello")));
        assert!(before.elapsed() >= Duration::from_micros(200), "two ways took {:?}", before.elapsed());
        assert!(before.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn calls_to_a_host_that_is_down_or_unknown_are_refused() {
    run(2, |world| async move {
        let (client, _server, _) = pair(&world).await;
        world.crash("server").await;
        assert_eq!(echo(&client, "a").await, Err(Code::Unavailable));
        let server = world.boot("server");
        assert_eq!(echo(&client, "b").await, Err(Code::Unavailable), "nothing listens yet");
        serve(&server, &Toy::default()).await;
        assert_eq!(echo(&client, "c").await, Ok(Bytes::from("c")));
        assert!(client.net.dial("nowhere", Expect::Plain).is_err());
    });
}

#[test]
fn a_crash_kills_handlers_and_breaks_their_calls() {
    run(3, |world| async move {
        let (client, _server, toy) = pair(&world).await;
        let call = client.spawn({
            let client = client.clone();
            async move { send(&client, "/toy/sleep", Body::empty()).await.map(|_| ()) }
        });
        sleep(Duration::from_secs(1)).await;
        assert_eq!(toy.asleep.load(Ordering::Relaxed), 1);
        world.crash("server").await;
        assert_eq!(toy.asleep.load(Ordering::Relaxed), 0);
        assert_eq!(call.await.expect("no panic"), Err(Code::Unavailable));
    });
}

#[test]
fn a_caller_that_lets_go_or_runs_out_of_time_stops_the_handler() {
    run(4, |world| async move {
        let (client, _server, toy) = pair(&world).await;
        let limit = Duration::from_millis(500);
        assert!(timeout(limit, send(&client, "/toy/sleep", Body::empty())).await.is_err());
        sleep(limit).await;
        assert_eq!(toy.asleep.load(Ordering::Relaxed), 0);

        let channel = client.net.dial("server:1", Expect::Plain).expect("an endpoint");
        let request = http::Request::builder().uri("http://server/toy/sleep").header("grpc-timeout", "250m");
        let before = Instant::now();
        let error =
            channel.oneshot(request.body(Body::empty()).expect("a request")).await.expect_err("too slow").into_inner();
        assert!(error.is::<tonic::TimeoutExpired>(), "{error}");
        assert!(before.elapsed() < limit);
        sleep(limit).await;
        assert_eq!(toy.asleep.load(Ordering::Relaxed), 0);
    });
}

/// A stream whose sender is handed out.
fn stream_body() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, frames) = mpsc::channel::<Bytes>(8);
    let frames = futures::stream::unfold(frames, |mut frames| async move {
        let frame = frames.recv().await?;
        Some((Ok::<_, Status>(Frame::data(frame)), frames))
    });
    (sender, Body::new(StreamBody::new(frames)))
}

async fn next(body: &mut Body) -> Option<Result<Bytes, Code>> {
    let frame = body.frame().await?;
    Some(frame.map(|frame| frame.into_data().expect("data")).map_err(|status| status.code()))
}

#[test]
fn frames_of_a_stream_arrive_in_order_and_it_ends_cleanly() {
    run(5, |world| async move {
        world.set_links(LinkQuality { breaks_ppm: 0, ..LinkQuality::BAD });
        let (client, _server, _) = pair(&world).await;
        let (sender, body) = stream_body();
        let mut answer = send(&client, "/toy/echo", body).await.expect("echo").into_body();
        client.spawn(async move {
            for number in 0..200_u8 {
                sender.send(Bytes::from(vec![number])).await.expect("the stream is read");
            }
        });
        for number in 0..200_u8 {
            assert_eq!(next(&mut answer).await, Some(Ok(Bytes::from(vec![number]))));
        }
        assert_eq!(next(&mut answer).await, None);
    });
}

#[test]
fn a_crash_of_either_side_breaks_a_stream() {
    for down in ["server", "client"] {
        run(6, move |world| async move {
            let (client, _server, _) = pair(&world).await;
            let (sender, body) = stream_body();
            let mut answer = send(&client, "/toy/echo", body).await.expect("echo").into_body();
            sender.send(Bytes::from("a")).await.expect("open");
            assert_eq!(next(&mut answer).await, Some(Ok(Bytes::from("a"))));
            world.crash(down).await;
            assert_eq!(next(&mut answer).await, Some(Err(Code::Unavailable)));
            assert_eq!(next(&mut answer).await, None);
        });
    }
}

#[test]
fn a_short_cut_delays_and_a_long_one_breaks() {
    run(7, |world| async move {
        let (client, _server, toy) = pair(&world).await;
        for (there, seconds, reached, answer) in [
            (true, 2, true, Ok(Bytes::from("x"))),
            (false, 2, true, Ok(Bytes::from("x"))),
            (true, 20, false, Err(Code::Unavailable)),
            (false, 20, true, Err(Code::Unavailable)),
        ] {
            let calls = toy.calls.load(Ordering::Relaxed);
            let (from, to) = if there { ("client", "server") } else { ("server", "client") };
            world.cut(from, to);
            client.spawn({
                let world = world.clone();
                async move {
                    sleep(Duration::from_secs(seconds)).await;
                    world.mend_all();
                }
            });
            assert_eq!(echo(&client, "x").await, answer, "cut {from} > {to} for {seconds} s");
            assert_eq!(toy.calls.load(Ordering::Relaxed) > calls, reached, "cut {from} > {to} for {seconds} s");
            sleep(Duration::from_secs(30)).await;
        }
    });
}

#[test]
fn a_call_may_arrive_twice() {
    run(14, |world| async move {
        world.set_links(LinkQuality { repeats_ppm: 1_000_000, repeat_us_max: 1_000_000, ..LinkQuality::GOOD });
        let (client, _server, toy) = pair(&world).await;
        assert_eq!(echo(&client, "once").await, Ok(Bytes::from("once")));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(toy.calls.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_stream_may_arrive_twice() {
    run(15, |world| async move {
        world.set_links(LinkQuality { repeats_ppm: 1_000_000, repeat_us_max: 1_000_000, ..LinkQuality::GOOD });
        let (client, _server, toy) = pair(&world).await;
        let (sender, body) = stream_body();
        let mut answer = send(&client, "/toy/echo", body).await.expect("echo").into_body();
        for text in ["a", "b", "c"] {
            sender.send(text.into()).await.expect("the first receiver reads");
            assert_eq!(next(&mut answer).await, Some(Ok(Bytes::from(text))));
        }
        sleep(Duration::from_secs(2)).await;
        assert_eq!(toy.calls.load(Ordering::Relaxed), 2);
        assert_eq!(toy.frames.load(Ordering::Relaxed), 6, "each frame of each of the two");
        drop(sender);
        assert_eq!(next(&mut answer).await, None);
    });
}

#[test]
fn an_idle_stream_over_a_dead_link_breaks_on_both_sides() {
    run(8, |world| async move {
        let (client, _server, _) = pair(&world).await;
        let (sender, body) = stream_body();
        let mut answer = send(&client, "/toy/echo", body).await.expect("echo").into_body();
        world.cut("client", "server");
        assert_eq!(next(&mut answer).await, Some(Err(Code::Unavailable)));
        sleep(Duration::from_secs(1)).await;
        assert!(sender.is_closed(), "the request's body is let go of");
    });
}

const SPACES: &[&str] = &["a", "b"];

#[test]
fn wall_clocks_jump_and_boot_clocks_do_not() {
    run(11, |world| async move {
        let host = world.boot("host");
        let (wall_ms, boot_ns) = (host.clock.wall_ms(), host.clock.boottime_ns());
        sleep(Duration::from_secs(10)).await;
        world.skew_wall("host", -60_000);
        assert_eq!(host.clock.wall_ms(), wall_ms + 10_000 - 60_000);
        assert_eq!(host.clock.boottime_ns(), boot_ns + 10_000_000_000);
    });
}

/// A noisy run: many calls over bad links, crashes and cuts.
fn noisy(seed: u64) -> (u64, u64) {
    run(seed, |world| async move {
        world.set_links(LinkQuality::BAD);
        let (client, server, toy) = pair(&world).await;
        drop(server);
        for round in 0..20_u32 {
            for number in 0..10 {
                client.spawn({
                    let (client, world) = (client.clone(), world.clone());
                    async move {
                        let answer = echo(&client, &format!("{round}/{number}")).await;
                        world.note(format_args!("{round}/{number}: {answer:?}"));
                    }
                });
            }
            sleep(Duration::from_millis(world.chance().between(1, 2_000))).await;
            match world.chance().between(0, 4) {
                0 => world.cut("client", "server"),
                1 => world.mend_all(),
                _ => {
                    world.crash("server").await;
                    serve(&world.boot("server"), &toy).await;
                }
            }
        }
        (world.trace_hash(), world.trace_events())
    })
}

#[test]
fn the_same_seed_runs_the_same() {
    let (first, events) = noisy(77);
    assert!(events > 400, "{events} events");
    assert_eq!((first, events), noisy(77));
    assert_ne!(first, noisy(78).0);
}

#[test]
#[should_panic(expected = "a spawned task panicked")]
fn a_panic_in_a_task_is_a_panic_of_the_run() {
    run(12, |world| async move {
        world.boot("host").spawn(async { panic!("on purpose") });
        sleep(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_link_carries_so_many_bytes_a_second_and_small_messages_pass_large_ones() {
    run(11, |world| async move {
        world.set_links(LinkQuality { spikes_ppm: 0, ..LinkQuality::SLOW });
        let (client, _server, _) = pair(&world).await;
        let began = Instant::now();
        let large = client.spawn({
            let client = client.clone();
            async move {
                send(
                    &client,
                    "/toy/echo",
                    Body::new(Full::new(Bytes::from(vec![7; 1_250_000])).map_err(|never| match never {})),
                )
                .await
                .is_ok()
            }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        send(&client, "/toy/echo", Body::empty()).await.expect("echo");
        assert!(began.elapsed() < Duration::from_millis(20), "a small one took {:?}", began.elapsed());
        assert!(large.await.expect("task"), "answered");
        // A tenth of a second there, and the same back.
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(100) && took < Duration::from_millis(260), "a large one took {took:?}");
    });
}
