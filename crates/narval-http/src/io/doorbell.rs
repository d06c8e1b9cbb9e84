//! When the sender of a message has to wake its receiver: model-checked, as the lease is.

use crate::io::sync::{AtomicBool, Ordering, fence};

/// The protocol between many senders and one receiver that sleeps where there are no messages.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// The receiver is about to sleep, or sleeps, or has said nothing else: the next sender wakes it.
    asleep: AtomicBool,
    /// Receiver: there were messages since it last slept.
    is_busy: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false), is_busy: AtomicBool::new(false) }
    }

    /// Sender: whether it has to wake the receiver, now that its message is in the queue.
    pub(crate) fn has_to_wake(&self) -> bool {
        // Pairs with the fence in `may_sleep`: either this thread sees that the receiver sleeps, or the receiver sees the
        // message.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Receiver: announces that it is about to sleep. False: there is a message, and it must not.
    pub(crate) fn may_sleep(&self, is_empty: impl FnOnce() -> bool) -> bool {
        if self.asleep.load(Ordering::Relaxed) {
            // It never said that it is awake, and nobody has sent anything since, or whoever has is about to wake it.
            return true;
        }
        set(&self.asleep, true);
        fence(Ordering::SeqCst);
        if is_empty() {
            return true;
        }
        set(&self.asleep, false);
        false
    }

    /// Receiver: it is awake. Where there were no messages lately, nobody is told: a sender then wakes it for nothing, once,
    /// and in return it need not have a fence each time it is about to sleep, which waits for all that was written.
    pub(crate) fn awake(&self) {
        if self.is_busy.load(Ordering::Relaxed) {
            self.is_busy.store(false, Ordering::Relaxed);
            set(&self.asleep, false);
        }
    }

    /// Receiver: there is a message.
    pub(crate) fn has_message(&self) {
        self.is_busy.store(true, Ordering::Relaxed);
    }
}

/// A store. For loom a swap: it takes a sender's swap for later than a store that came after it, if that is no swap.
fn set(flag: &AtomicBool, to: bool) {
    #[cfg(all(loom, test))]
    flag.swap(to, Ordering::Relaxed);
    #[cfg(not(all(loom, test)))]
    flag.store(to, Ordering::Relaxed);
}

#[cfg(all(loom, test))]
mod loom_tests {
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    struct Model {
        doorbell: Doorbell,
        messages: AtomicUsize,
        /// As an eventfd: set until it was seen.
        rung: Mutex<bool>,
        wake: Condvar,
    }

    impl Model {
        fn ring(&self) {
            *self.rung.lock().unwrap() = true;
            self.wake.notify_one();
        }

        fn sleep(&self) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.wake.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    /// Two senders. A lost wake-up is a deadlock, which loom finds.
    #[test]
    fn loom_no_message_is_slept_through() {
        let mut checked = loom::model::Builder::new();
        checked.preemption_bound = Some(3);
        checked.check(|| {
            let (doorbell, messages) = (Doorbell::new(), AtomicUsize::new(0));
            let model = Arc::new(Model { doorbell, messages, rung: Mutex::new(false), wake: Condvar::new() });
            let senders = [(), ()].map(|()| {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    model.messages.fetch_add(1, Ordering::Relaxed);
                    if model.doorbell.has_to_wake() {
                        model.ring();
                    }
                })
            });
            let mut left = 2;
            while left > 0 {
                if model.doorbell.may_sleep(|| model.messages.load(Ordering::Relaxed) == 0) {
                    model.sleep();
                }
                model.doorbell.awake();
                let taken = model.messages.swap(0, Ordering::Relaxed);
                if taken > 0 {
                    model.doorbell.has_message();
                    left -= taken;
                }
            }
            let _joined = senders.map(|sender| sender.join().unwrap());
        });
    }
}
