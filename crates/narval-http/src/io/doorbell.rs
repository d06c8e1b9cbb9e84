//! Decides when the sender of a message must wake its receiver. Model-checked with loom, like the lease.

use crate::io::sync::{AtomicBool, Ordering, fence};

/// The wake-up protocol between many senders and one receiver that sleeps while there are no messages.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// The receiver is asleep or about to sleep, or has not said otherwise: the next sender wakes it.
    asleep: AtomicBool,
    /// Receiver only: whether there were messages since it last slept.
    is_busy: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false), is_busy: AtomicBool::new(false) }
    }

    /// Sender: returns whether it must wake the receiver, now that its message is in the queue.
    pub(crate) fn has_to_wake(&self) -> bool {
        // Pairs with the fence in `may_sleep`: either this thread sees that the receiver sleeps, or the receiver sees
        // the message.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Receiver: announces that it is about to sleep. Returns `false` if there is a message, and it must not.
    pub(crate) fn may_sleep(&self, is_empty: impl FnOnce() -> bool) -> bool {
        if self.asleep.load(Ordering::Relaxed) {
            // It never announced that it is awake: either nobody has sent anything since, or that sender is about to
            // wake it.
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

    /// Receiver: it is awake. This is announced only if there were messages lately. Otherwise one sender may wake it
    /// needlessly, which is cheaper than a fence before every sleep (a fence waits until the store buffer has drained).
    pub(crate) fn awake(&self) {
        if self.is_busy.load(Ordering::Relaxed) {
            self.is_busy.store(false, Ordering::Relaxed);
            set(&self.asleep, false);
        }
    }

    /// Receiver: it has found a message.
    pub(crate) fn has_message(&self) {
        self.is_busy.store(true, Ordering::Relaxed);
    }
}

/// A store. Under loom it is a swap, because loom may order a sender's swap after a plain store that followed it.
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
        /// Like an eventfd: set until it is read.
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
