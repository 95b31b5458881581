//! Dirs: names of files, as the cache shows them and as a power loss leaves them.
//!
//! **Invariants**
//! - A change of a directory is durable only after a sync of that directory that was submitted after
//!   the change had completed.
//! - A rename within one directory is one change; across two it is one in each.
//!
//! **Not here**: content.

use super::inode::Inode;
use crate::sim::faults::Fault;
use crate::sim::rng::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A file that names and handles share.
pub(super) type InodeRef = Rc<RefCell<Inode>>;
type Names = BTreeMap<String, InodeRef>;

/// One change of a directory.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// The name leads to this file now.
    Set(String, InodeRef),
    /// The name is gone.
    Remove(String),
    /// Both at once: a file moved over `to`.
    Rename {
        /// Old name.
        from: String,
        /// New name.
        to: String,
        /// The file.
        inode: InodeRef,
    },
}

/// One directory.
#[derive(Debug, Default)]
pub(super) struct Dir {
    pub(super) cache: Names,
    durable: Names,
    pending: Vec<(u64, Change)>,
    completed: u64,
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Change::Set(name, inode) => {
                names.insert(name.clone(), inode.clone());
            }
            Change::Remove(name) => {
                names.remove(name);
            }
            Change::Rename { from, to, inode } => {
                // The old name may lead to another file by now, if changes before were lost.
                if names.get(from).is_some_and(|it| Rc::ptr_eq(it, inode)) {
                    names.remove(from);
                }
                names.insert(to.clone(), inode.clone());
            }
        }
    }
}

impl Dir {
    pub(super) fn apply(&mut self, change: Change) {
        change.apply(&mut self.cache);
        self.completed += 1;
        self.pending.push((self.completed, change));
    }

    /// Files that names lead to after a power loss that takes every pending change, or keeps any.
    pub(super) fn uncached_files(&self) -> impl Iterator<Item = &InodeRef> {
        let pending = self.pending.iter().filter_map(|(_, change)| match change {
            Change::Set(_, inode) | Change::Rename { inode, .. } => Some(inode),
            Change::Remove(_) => None,
        });
        self.durable.values().chain(pending)
    }

    /// What a sync submitted now covers.
    pub(super) fn mark(&self) -> u64 {
        self.completed
    }

    pub(super) fn sync(&mut self, mark: u64) {
        let durable = &mut self.durable;
        self.pending.retain(|(number, change)| {
            let covered = *number <= mark;
            if covered {
                change.apply(durable);
            }
            !covered
        });
    }

    /// Power is gone: a journaling file system loses a tail of changes, others any subset.
    pub(super) fn power_loss(
        &mut self,
        rng: &mut Rng,
        fires: &mut dyn FnMut(Fault, &mut Rng) -> bool,
    ) {
        let journaled = rng.coin();
        for (_, change) in std::mem::take(&mut self.pending) {
            if fires(Fault::LostEntry, rng) {
                if journaled {
                    break;
                }
                continue;
            }
            change.apply(&mut self.durable);
        }
        self.cache = self.durable.clone();
    }
}
