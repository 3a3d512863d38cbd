//! Destination and format of log lines: the journal under systemd, text for users, JSON for collectors.
//!
//! Sets format and level only; the program decides what is logged. Called once,
//! by `main`, before anything else runs.

use std::{
    io::IsTerminal,
    os::{fd::AsFd, linux::fs::MetadataExt},
    sync::atomic::{AtomicBool, Ordering},
};

use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// The journal when standard error is connected to it, otherwise text.
    #[default]
    Auto,
    /// Text for users, colored on a terminal.
    Text,
    /// One JSON object per line, on standard error.
    Json,
    /// The journal's own protocol, fields as `BEDPLATE_<FIELD>`.
    Journal,
}

/// The logging flags every program has: `#[command(flatten)]` them.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LogArguments {
    /// Form of the log: auto (the journal under systemd, otherwise text), text, json or journal
    #[arg(long, env = "BEDPLATE_LOG_FORMAT", value_enum, default_value_t, global = true)]
    pub log_format: LogFormat,
    /// Level of the log: error, warn, info, debug or trace, or directives such as `info,bedplate_dhcp=debug`
    #[arg(long, env = "BEDPLATE_LOG", value_name = "LEVEL", global = true)]
    pub log_level: Option<String>,
}

/// Reason for which logging did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartLoggingError {
    /// The level is neither a level nor directives.
    #[error(
        "log level {level:?} is invalid; use error, warn, info, debug, trace or directives such as info,bedplate_dhcp=debug"
    )]
    Level {
        /// Value that was given.
        level: String,
    },
    /// The journal was asked for and is not there.
    #[error("cannot reach the journal; use --log-format text or json")]
    Journal(#[source] std::io::Error),
    /// Logging was started before.
    #[error("logging was started twice")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// True if log lines are records (JSON, journal), so that the last error belongs there too.
static RECORDS: AtomicBool = AtomicBool::new(false);

/// Returns true if log lines are records rather than text.
pub(crate) fn writes_records() -> bool {
    RECORDS.load(Ordering::Relaxed)
}

/// Starts logging for the rest of the process; `program` is the journal's SYSLOG_IDENTIFIER.
///
/// # Errors
/// [`StartLoggingError`]: usage errors, exit code 64.
pub fn start(program: &str, arguments: &LogArguments) -> Result<(), StartLoggingError> {
    let filter = filter(arguments.log_level.as_deref())?;
    let registry = tracing_subscriber::registry().with(filter);
    let format = resolve(arguments.log_format, standard_error_is_journal());
    let started = match format {
        LogFormat::Journal => {
            let layer = tracing_journald::layer()
                .map_err(StartLoggingError::Journal)?
                .with_syslog_identifier(program.to_owned())
                .with_field_prefix(Some("BEDPLATE".to_owned()));
            registry.with(layer).try_init()
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_current_span(true)
                .with_span_list(false)
                .with_writer(std::io::stderr);
            registry.with(layer).try_init()
        }
        LogFormat::Auto | LogFormat::Text => {
            let layer = tracing_subscriber::fmt::layer()
                .with_ansi(std::io::stderr().is_terminal())
                .with_writer(std::io::stderr);
            registry.with(layer).try_init()
        }
    };
    started.map_err(StartLoggingError::Twice)?;
    RECORDS.store(matches!(format, LogFormat::Json | LogFormat::Journal), Ordering::Relaxed);
    Ok(())
}

/// Target that logs whole answers of the API server, Secrets among them, when one cannot be read. Its errors are returned too.
const ANSWER_LOGGER: &str = "kube_client::client";

/// Part of [`ANSWER_LOGGER`] that logs no answers. It warns of certificate authorities that cannot be read again.
const TLS_LOGGER: &str = "kube_client::client::tls";

/// Builds a filter by target and level only. Filters on span fields would add a
/// regular expression engine to each program.
fn filter(level: Option<&str>) -> Result<Targets, StartLoggingError> {
    let level = level.map(str::trim).filter(|level| !level.is_empty()).unwrap_or("info");
    // A mistyped bare level would be taken for the name of a target, and silence everything.
    let parsed = if level.contains(['=', ',']) { level.parse().ok() } else { bare_level(level) };
    let parsed = parsed.ok_or_else(|| StartLoggingError::Level { level: level.to_owned() })?;
    let warns = parsed.would_enable(TLS_LOGGER, &tracing::Level::WARN);
    let tls = if warns { LevelFilter::WARN } else { LevelFilter::OFF };
    Ok(parsed.with_target(ANSWER_LOGGER, LevelFilter::OFF).with_target(TLS_LOGGER, tls))
}

fn bare_level(level: &str) -> Option<Targets> {
    level.parse::<LevelFilter>().ok().map(|level| Targets::new().with_default(level))
}

fn resolve(wanted: LogFormat, under_journal: bool) -> LogFormat {
    match wanted {
        LogFormat::Auto if under_journal => LogFormat::Journal,
        LogFormat::Auto => LogFormat::Text,
        chosen @ (LogFormat::Text | LogFormat::Json | LogFormat::Journal) => chosen,
    }
}

/// systemd names the journal's stream as `device:inode` in JOURNAL_STREAM (systemd.exec(5)); a child whose standard error was sent
/// elsewhere inherits the variable, so the file behind standard error is compared.
fn standard_error_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(descriptor) = std::io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    let file = std::fs::File::from(descriptor);
    file.metadata().is_ok_and(|meta| names_stream(&stream, meta.st_dev(), meta.st_ino()))
}

fn names_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream.split_once(':').is_some_and(|(dev, ino)| dev.parse() == Ok(device) && ino.parse() == Ok(inode))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use axum::http::{Request, Response};
    use futures::StreamExt;
    use k8s_openapi::api::core::v1::Secret;
    use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchParams};
    use kube::client::{Body, Client};

    use super::*;

    #[test]
    fn auto_is_the_journal_only_when_connected_to_it() {
        assert_eq!(resolve(LogFormat::Auto, true), LogFormat::Journal);
        assert_eq!(resolve(LogFormat::Auto, false), LogFormat::Text);
        assert_eq!(resolve(LogFormat::Json, true), LogFormat::Json);
    }

    #[test]
    fn journal_stream_must_name_the_very_file() {
        assert!(names_stream("9:4711", 9, 4711));
        assert!(!names_stream("9:4712", 9, 4711));
        assert!(!names_stream("nonsense", 9, 4711));
    }

    #[test]
    fn levels_and_directives_are_understood() {
        for level in [None, Some(""), Some("warn"), Some("info,bedplate_dhcp=debug")] {
            assert!(filter(level).is_ok(), "{level:?}");
        }
    }

    #[test]
    fn answers_of_the_api_server_are_logged_at_no_level() {
        for level in [None, Some("trace"), Some("info,kube_client::client=trace")] {
            let filter = filter(level).unwrap();
            assert!(!filter.would_enable("kube_client::client", &tracing::Level::ERROR), "{level:?}");
            assert!(filter.would_enable("bedplate_engine::store", &tracing::Level::INFO), "{level:?}");
            assert!(filter.would_enable("kube_client::client::tls", &tracing::Level::WARN), "{level:?}");
        }
    }

    #[test]
    fn warnings_of_the_tls_layer_follow_the_level() {
        for (level, warns) in [("info", true), ("error", false), ("info,kube_client=off", false)] {
            let filter = filter(Some(level)).unwrap();
            assert_eq!(filter.would_enable(TLS_LOGGER, &tracing::Level::WARN), warns, "{level}");
        }
    }

    /// Logs that a subscriber has captured.
    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn answer_that_cannot_be_read_is_not_logged() {
        const MARKER: &str = "marker-of-a-secret";
        let service = tower::service_fn(|request: Request<Body>| {
            // The name of the Secret must be a text.
            let answer = format!(r#"{{"metadata":{{"name":7}},"data":{{"token":"{MARKER}"}}}}"#);
            let status = if request.method() == "PUT" { 500 } else { 200 };
            let answer = Response::builder().status(status).body(Body::from(answer.into_bytes()));
            std::future::ready(Ok::<_, kube::Error>(answer.unwrap()))
        });
        let captured = Captured::default();
        let writer = captured.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let filter = filter(Some("trace,kube_client=trace,kube_client::client=trace")).unwrap();
        let _guard = tracing_subscriber::registry().with(filter).with(layer).set_default();
        tracing::trace!("control");
        let secrets = Api::<Secret>::namespaced(Client::new(service, "default"), "default");
        secrets.get("s").await.unwrap_err();
        secrets.list(&ListParams::default()).await.unwrap_err();
        secrets.delete("s", &DeleteParams::default()).await.unwrap_err();
        secrets.replace("s", &PostParams::default(), &Secret::default()).await.unwrap_err();
        let watched = secrets.watch(&WatchParams::default(), "0").await.unwrap();
        let events: Vec<_> = watched.collect().await;
        assert!(!events.is_empty() && events.iter().all(Result::is_err), "{events:?}");
        let logged = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert!(logged.contains("control") && !logged.contains(MARKER), "{logged}");
    }

    #[test]
    fn mistyped_level_is_refused_rather_than_silent() {
        for level in ["inof", "info,bedplate_dhcp=loud"] {
            let error = filter(Some(level)).expect_err(level);
            assert!(error.to_string().contains(level), "{error}");
        }
    }
}
