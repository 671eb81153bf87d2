//! First come, first served, in a bounded queue.

use std::collections::VecDeque;

use super::{Discipline, Next, Queued, View};
use crate::port::{DropReason, RefusalReason, Timeliness};

/// First come, first served. Launch times have no meaning to it.
#[derive(Debug)]
pub struct Fifo<T> {
    queue: VecDeque<Queued<T>>,
    capacity: usize,
}

impl<T> Fifo<T> {
    /// An empty queue for at most `capacity` frames.
    pub fn new(capacity: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(capacity),
            capacity,
        }
    }
}

impl<T: Send> Discipline<T> for Fifo<T> {
    fn enqueue(
        &mut self,
        frame: Queued<T>,
        _view: &View<'_>,
    ) -> Result<(), (RefusalReason, Queued<T>)> {
        if self.queue.len() >= self.capacity {
            return Err((RefusalReason::Full, frame));
        }
        self.queue.push_back(frame);
        Ok(())
    }

    fn next(&mut self, view: &View<'_>) -> Next {
        let Some(head) = self.queue.front() else {
            return Next::Empty;
        };
        match view.earliest(head.item.len, view.ready) {
            None => Next::Discard(DropReason::NoWindow),
            Some(start) => Next::Frame {
                start,
                timeliness: Timeliness::OnTime,
            },
        }
    }

    fn take(&mut self) -> Option<Queued<T>> {
        self.queue.pop_front()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn has_room(&self, _flow: u32) -> bool {
        self.queue.len() < self.capacity
    }

    fn remove(
        &mut self,
        unwanted: &mut dyn FnMut(&Queued<T>) -> bool,
        sink: &mut dyn FnMut(Queued<T>),
    ) {
        for _ in 0..self.queue.len() {
            if let Some(frame) = self.queue.pop_front() {
                if unwanted(&frame) {
                    sink(frame);
                } else {
                    self.queue.push_back(frame);
                }
            }
        }
    }
}
