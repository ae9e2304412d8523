//! Follows one resource in one namespace: carries out what the session plans, and reports what comes of it.

use std::time::Instant;

use actix::prelude::Recipient;

use super::api::{KubernetesConnection, ResourcePath, Trouble, Watch};
use super::{News, Report};
use crate::clock;
use crate::logic::kubernetes::{Failure, Object, Pace, Session, Step, Verb, WatchEnd};
use crate::logic::rng::Rng;
use crate::wire::kubernetes::WatchLine;

pub(super) struct Follower {
    pub(super) connection: KubernetesConnection,
    pub(super) path: ResourcePath,
    pub(super) pace: Pace,
    /// No more than this is asked for, page by page.
    pub(super) max_objects: usize,
    pub(super) rng: Rng,
    pub(super) reports: Reports,
}

/// Where to report to.
pub(super) struct Reports {
    pub(super) scope: usize,
    pub(super) to: Recipient<Report>,
}

/// The actor is gone, and with it whoever would want to know.
struct ActorGone;

impl Reports {
    async fn tell(&self, news: News) -> Result<(), ActorGone> {
        self.to.send(Report { scope: self.scope, news }).await.map_err(|_| ActorGone)
    }

    async fn failed(&self, verb: Verb, trouble: Trouble) -> Result<(), ActorGone> {
        self.tell(News::Failed { verb, failure: trouble.failure, message: trouble.message }).await
    }
}

/// A full list.
struct Listing {
    version: String,
    objects: Vec<Object>,
    num_unreadable: usize,
}

impl Follower {
    /// Runs until the actor is gone.
    pub(super) async fn run(self) {
        let mut session = Session::new(self.pace, self.rng.clone(), clock::now());
        while self.step(&mut session).await.is_ok() {}
    }

    async fn step(&self, session: &mut Session) -> Result<(), ActorGone> {
        let plan = session.plan();
        let pause = plan.at.saturating_duration_since(clock::now());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        match plan.step {
            Step::List => self.list(session).await,
            Step::Watch { version, until } => {
                let opened = clock::now();
                let end = self.watch(&version, until, session).await?;
                session.watch_ended(end, opened, clock::now());
                Ok(())
            }
        }
    }

    async fn list(&self, session: &mut Session) -> Result<(), ActorGone> {
        match self.all_pages().await {
            Ok(Listing { version, objects, num_unreadable }) => {
                session.listed(&version, clock::now());
                self.reports.tell(News::Listed { objects, num_unreadable }).await
            }
            Err(trouble) => {
                session.list_failed(trouble.failure, clock::now());
                self.reports.failed(Verb::List, trouble).await
            }
        }
    }

    async fn all_pages(&self) -> Result<Listing, Trouble> {
        let mut listing = Listing { version: String::new(), objects: Vec::new(), num_unreadable: 0 };
        let mut token = String::new();
        loop {
            let page = self.connection.page(&self.path, &token).await?;
            listing.objects.extend(page.objects);
            listing.num_unreadable += page.num_unreadable;
            listing.version = page.version;
            match page.next {
                // What is beyond the limit would not be kept. One more object shows that there is more.
                Some(next) if listing.objects.len() <= self.max_objects => token = next,
                _ => return Ok(listing),
            }
        }
    }

    async fn watch(&self, version: &str, until: Instant, session: &mut Session) -> Result<WatchEnd, ActorGone> {
        let most = until.saturating_duration_since(clock::now());
        let mut watch = match self.connection.watch(&self.path, version, most).await {
            Ok(watch) => watch,
            Err(trouble) => return self.watch_failed(trouble).await,
        };
        self.reports.tell(News::Opened).await?;
        let lines = self.read(&mut watch, session);
        let left = until.saturating_duration_since(clock::now());
        tokio::time::timeout(left, lines).await.unwrap_or(Ok(WatchEnd::Left))
    }

    async fn read(&self, watch: &mut Watch, session: &mut Session) -> Result<WatchEnd, ActorGone> {
        loop {
            let line = match watch.next().await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(WatchEnd::Closed),
                Err(trouble) => return self.watch_failed(trouble).await,
            };
            let (version, news) = match line {
                WatchLine::Put { version, object } => (version, News::Put(object)),
                WatchLine::Removed { version, name, uid } => (version, News::Removed { name, uid }),
                WatchLine::Bookmark { version } => (version, News::Unchanged),
                WatchLine::Error(status) => {
                    let failure = match Failure::of_status(status.code) {
                        // Whatever went wrong in the middle of a watch, its version cannot be relied on.
                        Failure::Refused | Failure::NotFound => Failure::Unreadable,
                        failure => failure,
                    };
                    return self.watch_failed(Trouble { failure, message: status.message }).await;
                }
            };
            self.reports.tell(news).await?;
            session.heard(&version);
        }
    }

    async fn watch_failed(&self, trouble: Trouble) -> Result<WatchEnd, ActorGone> {
        let failure = trouble.failure;
        self.reports.failed(Verb::Watch, trouble).await?;
        Ok(WatchEnd::Failed(failure))
    }
}
