//! Brief: a client's own feed, which it fills, seals, deletes and makes again under the same name.
//!
//! **Invariants**
//! - One client, one call at a time: what it knows of its feed follows from the answers.
//! - A feed is told from the one before it by its id: nothing of that one may be seen in it, neither
//!   records nor producers nor commits.
//!
//! **Not here**: what all clients share (`workload`).

use crate::history::name_of;
use crate::subject::{Outcome, Subject};
use crate::workload::{Client, Session};
use std::cell::RefCell;
use std::rc::Rc;

impl Client {
    /// Name of the feed that only client `number` uses.
    #[must_use]
    pub fn brief_name(number: usize) -> String {
        format!("brief-{number}")
    }
}

impl<S: Subject> Session<S> {
    /// Makes the client's own feed, or does something with it.
    pub(crate) async fn brief(&self, client: &Rc<RefCell<Client>>) {
        let (known, lot, name) = {
            let mut client = client.borrow_mut();
            let name = Client::brief_name(client.number);
            (client.brief.clone(), client.rng.below(100), name)
        };
        let Some(feed) = known else {
            if let Outcome::Acked(id) = self.subject.create_feed(&name).await {
                let feed = self.history.borrow_mut().made(&name, id);
                client.borrow_mut().brief = Some(feed);
            }
            return;
        };
        match lot {
            0..60 => self.produce(client, &feed).await,
            60..75 => self.read(&feed).await,
            75..85 => self.seal(&feed).await,
            _ => self.delete(client, &feed).await,
        }
    }

    async fn delete(&self, client: &Rc<RefCell<Client>>, feed: &str) {
        // Whatever comes of it, the next one to be made tells which feed is there.
        client.borrow_mut().brief = None;
        if let Outcome::Acked(()) = self.subject.delete_feed(name_of(feed)).await {
            self.history.borrow_mut().deleted.insert(feed.to_owned());
        }
    }
}
