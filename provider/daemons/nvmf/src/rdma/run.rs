//! The thread of an engine: it takes events, looks at timers and sleeps.

use super::engine::{DRAIN, Engine, STOP};
use doorbell::{EvdListener, Event};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the engine looks at its timers.
const TICK: Duration = Duration::from_millis(100);

/// How many events are taken at a time.
const EVENTS: usize = 64;

impl Engine {
    /// Serves until the handle orders the end.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be served.
    pub fn run(mut self) -> doorbell::Result<()> {
        let mut listener = EvdListener::new(&self.events)?;
        let mut next_tick = self.now;
        let mut busy_until = next_tick;
        loop {
            let mut count = self.poll_files();
            while count < EVENTS
                && let Some(event) = listener.dequeue()?
            {
                self.on_event(event);
                count += 1;
            }
            self.receives.refill(&self.ia, &self.pz, count == 0)?;
            let now = Instant::now();
            self.now = now;
            self.run_delayed(now);
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
            match listener.poll()? {
                Some(event) => self.on_event(event),
                None => {
                    let until = self.delayed.peek().map_or(next_tick, |first| first.due.min(next_tick));
                    self.sleep_until(&listener, until);
                }
            }
        }
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
            Event::ConnectionRequest(arrival) => self.on_connection_request(arrival.cr),
            Event::Software(_) => self.on_wake(),
            other => tracing::warn!(event = ?other, "an event that nobody has asked for"),
        }
    }

    /// Something has changed for controllers: they have ended or have events.
    fn on_wake(&mut self) {
        self.shared.woken.store(false, Ordering::Release);
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
    fn sleep_until(&self, listener: &EvdListener, until: Instant) {
        let rest = until.saturating_duration_since(Instant::now());
        // Rounded up, so that the timer has passed afterwards.
        let timeout = PollTimeout::try_from(rest + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let slept = match &self.ring {
            Some(ring) => {
                // Readable as well if an operation has completed since the last look.
                let slept = poll(&mut [watch(listener.as_fd()), watch(ring.event())], timeout);
                ring.clear_event();
                slept
            }
            None => poll(&mut [watch(listener.as_fd())], timeout),
        };
        if let Err(error) = slept {
            tracing::debug!(%error, "poll");
        }
    }
}
