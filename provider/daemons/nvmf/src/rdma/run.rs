//! The thread of an engine: it takes events, looks at timers and sleeps.

use super::engine::{DRAIN, Engine, STOP};
use doorbell::{Evd, EvdListener, Event, Received};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the engine looks at its timers.
const TICK: Duration = Duration::from_millis(100);

/// An engine that has commands to do looks for other events in one of so many passes: they are rare,
/// and to find none costs as much as a completion.
const EVENTS_EACH: u32 = 16;

/// How many events of an EVD are taken at a time.
const EVENTS: usize = 64;

impl Engine {
    /// Serves until the handle orders the end.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be served.
    pub fn run(mut self) -> doorbell::Result<()> {
        let mut listeners = [
            EvdListener::new(&self.received)?,
            EvdListener::new(&self.done)?,
            EvdListener::new(&self.events)?,
        ];
        let mut next_tick = self.now;
        let mut busy_until = next_tick;
        loop {
            listeners.iter_mut().for_each(EvdListener::cancel);
            let count = self.turn()?;
            let now = self.now;
            if now >= next_tick {
                if self.tick(now) {
                    return Ok(());
                }
                next_tick = now + TICK;
            }
            if count > 0 {
                busy_until = now + self.options.poll_time;
                continue;
            }
            if now < busy_until {
                std::hint::spin_loop();
                continue;
            }
            let mut is_idle = true;
            for listener in &mut listeners {
                if let Some(event) = listener.poll()? {
                    self.on_event(event);
                    is_idle = false;
                }
            }
            if is_idle {
                let until = self.delayed.peek().map_or(next_tick, |first| first.due.min(next_tick));
                self.sleep_until(&listeners, until);
            }
        }
    }

    /// One pass: takes events and completed operations on files, and does what they ask for. Returns
    /// how many there were. [`Engine::run`] is a loop of passes, with timers and sleep.
    ///
    /// # Errors
    /// As [`Engine::run`].
    #[inline(never)]
    pub fn turn(&mut self) -> doorbell::Result<usize> {
        let mut count = self.poll_files();
        count += self.take_received()?;
        count += self.take(|engine| &engine.done)?;
        self.passes = self.passes.wrapping_add(1);
        if count == 0 || self.passes.is_multiple_of(EVENTS_EACH) {
            count += self.take(|engine| &engine.events)?;
        }
        self.receives.refill(count == 0)?;
        self.now = Instant::now();
        self.clock = self.now.duration_since(self.opened).as_micros() as u64;
        self.run_delayed(self.now);
        self.send_all_responses();
        Ok(count)
    }

    /// Takes up to [`EVENTS`] capsules. Returns how many.
    fn take_received(&mut self) -> doorbell::Result<usize> {
        let mut count = 0;
        while count < EVENTS
            && let Some(received) = self.receives.dequeue(&self.received)?
        {
            match received {
                Received::Message(capsule) => self.on_capsule(capsule),
                // Its connection ends.
                Received::Failed(_) => {}
                Received::Other(event) => self.on_event(event),
            }
            count += 1;
        }
        self.send_all_responses();
        Ok(count)
    }

    /// Takes up to [`EVENTS`] events of this EVD. Returns how many.
    fn take(&mut self, of: impl Fn(&Self) -> &Evd) -> doorbell::Result<usize> {
        let mut count = 0;
        while count < EVENTS
            && let Some(event) = of(self).dequeue()?
        {
            self.on_event(event);
            count += 1;
        }
        self.send_all_responses();
        Ok(count)
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Received(dto) => self.on_receive(&dto),
            Event::Done(dto) => self.on_request_done(&dto),
            Event::Failed(dto) if dto.op.is_receive() => self.on_receive(&dto),
            Event::Failed(dto) => self.on_request_done(&dto),
            Event::Connected(event) | Event::Disconnected(event) | Event::NotConnected(event) => {
                self.on_connection(&event);
            }
            Event::Drained(event) => self.on_drained(&event),
            Event::ConnectionRequest(arrival) => self.on_arrival(arrival.cr),
            Event::Software(_) => self.on_wake(),
            other => tracing::warn!(event = ?other, "an event that nobody has asked for"),
        }
    }

    /// Something has changed for controllers: they have ended or have events. Or there are connection
    /// requests from a sibling.
    fn on_wake(&mut self) {
        // Acquires what was sent before the flag was set.
        self.shared.woken.swap(false, Ordering::AcqRel);
        while let Ok(request) = self.requests.try_recv() {
            self.on_connection_request(request);
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            if connection.queue.has_ended() {
                self.close(index, "its controller has ended");
            } else {
                self.send_events(index);
            }
        }
        self.prepare_backends();
    }

    /// Looks at timers. Returns whether the engine shall end.
    fn tick(&mut self, now: Instant) -> bool {
        while let Ok(Some(event)) = self.ia.async_evd().dequeue() {
            // Also for each connection that ends.
            tracing::debug!(?event, device = self.options.device, "an event of the device");
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            match connection.queue.controller() {
                None if now.duration_since(connection.since) > self.options.connect_time => {
                    self.close(index, "no Connect came in time");
                }
                Some(controller) if connection.queue.number() == 0 && controller.check_keep_alive(now) => {
                    self.close(index, "no keep-alive came in time");
                }
                _ => {}
            }
        }
        if self.shared.woken.load(Ordering::Acquire) {
            self.on_wake();
        }
        self.publish_gauges();
        let order = self.shared.order.load(Ordering::Relaxed);
        let idle = order == STOP || (order == DRAIN && self.is_idle());
        if idle {
            for index in 0..self.connections.len() {
                self.close(index, "the target ends");
            }
        }
        idle && self.connections.iter().all(Option::is_none)
    }

    /// Sleeps until there may be an event, a file operation has completed, or it is time.
    fn sleep_until(&self, listeners: &[EvdListener; 3], until: Instant) {
        let rest = until.saturating_duration_since(Instant::now());
        // Rounded up, so that the timer has passed afterwards.
        let timeout = PollTimeout::try_from(rest + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<_> = listeners.iter().map(|listener| watch(listener.as_fd())).collect();
        // Readable as well if an operation has completed since the last look.
        fds.extend(self.ring.as_ref().map(|ring| watch(ring.event())));
        let slept = poll(&mut fds, timeout);
        if let Some(ring) = &self.ring {
            ring.clear_event();
        }
        if let Err(error) = slept {
            tracing::debug!(%error, "poll");
        }
    }
}
