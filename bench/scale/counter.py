"""A proxy before the object store that counts what it is asked for."""
import socket, threading


class Counter:
    """A proxy that counts requests, and bytes that come back. A request is what a client sends after an answer."""

    def __init__(self, port):
        self.target, self.requests, self.bytes, self.lock = port, 0, 0, threading.Lock()
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listener.getsockname()[1]
        threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", self.target))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            turn = [True]
            threading.Thread(target=self.pump, args=(client, server, turn, True), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, turn, False), daemon=True).start()

    def pump(self, source, sink, turn, is_client):
        try:
            while piece := source.recv(1 << 18):
                with self.lock:
                    if is_client and turn[0]:
                        self.requests += 1
                    if not is_client:
                        self.bytes += len(piece)
                    # A body that is sent after a 100 is no request of its own.
                    is_continue = not is_client and piece.startswith(b"HTTP/1.1 100")
                    turn[0] = not is_client and not is_continue
                sink.sendall(piece)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def take(self):
        with self.lock:
            taken, self.requests, self.bytes = (self.requests, self.bytes), 0, 0
        return taken
