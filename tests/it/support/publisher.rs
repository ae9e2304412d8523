//! One publisher socket of an engine, steered by hand: which bytes, which sequence number, and when.

use super::eventually;

/// A socket that publishes like an engine's rank does. It learns of subscriptions, so that a test can wait for one instead of
/// guessing when it has arrived. Dropping it frees its port.
pub(crate) struct Publisher {
    socket: zmq::Socket,
    port: u16,
    // Last, so that the socket is closed first: ending a context waits for its sockets.
    _context: zmq::Context,
}

impl Publisher {
    /// Binds a free port of 127.0.0.1.
    pub(crate) fn bind() -> Self {
        Self::bind_at("127.0.0.1", 0)
    }

    /// Binds the port of the host, brackets included where it is IPv6; port 0 takes a free one.
    pub(crate) fn bind_at(host: &str, port: u16) -> Self {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::XPUB).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_ipv6(true).unwrap();
        let port_text = if port == 0 { "*".to_owned() } else { port.to_string() };
        socket.bind(&format!("tcp://{host}:{port_text}")).unwrap();
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        let port = endpoint.rsplit(':').next().unwrap().parse().unwrap();
        Self { socket, port, _context: context }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until somebody has subscribed since the last call. What is sent from then on reaches them.
    pub(crate) async fn wait_for_subscriber(&self) {
        eventually("somebody subscribes to the publisher", || async { self.next_subscription() }).await;
    }

    /// Sends a message as engines do: topic, sequence number, payload.
    pub(crate) fn send(&self, sequence: u64, payload: &[u8]) {
        self.send_parts(vec![b"load".to_vec(), sequence.to_be_bytes().to_vec(), payload.to_vec()]);
    }

    /// Sends these parts.
    pub(crate) fn send_parts(&self, parts: Vec<Vec<u8>>) {
        self.socket.send_multipart(parts, zmq::DONTWAIT).unwrap();
    }

    /// A subscription is one byte 1 and the topic; its end is one byte 0 and the topic.
    fn next_subscription(&self) -> Option<()> {
        while let Ok(message) = self.socket.recv_bytes(zmq::DONTWAIT) {
            if message.first() == Some(&1) {
                return Some(());
            }
        }
        None
    }
}
