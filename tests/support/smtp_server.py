"""A mail server on loopback that keeps what it gets: as much of SMTP as Airflow's notifier speaks."""

from __future__ import annotations

import contextlib
import email
import json
import socketserver
from collections.abc import Iterator
from email.message import Message

from tests.support.serving import serving


class MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.mails: list[Message] = []
        super().__init__(("127.0.0.1", 0), _Session)

    @property
    def connection(self) -> str:
        """An Airflow connection to it, as JSON."""
        extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com", "timeout": 30}
        return json.dumps(
            {"conn_type": "smtp", "host": "127.0.0.1", "port": self.server_address[1], "extra": extra}
        )

    def with_subject(self, text: str) -> list[str]:
        """The texts of the mails whose subject has this in it."""
        return [_text(mail) for mail in self.mails if text in str(mail["Subject"])]


@contextlib.contextmanager
def mail_server() -> Iterator[MailServer]:
    with serving(MailServer()) as server:
        yield server


class _Session(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline():
            command = line.split(b" ")[0].strip().upper()
            if command == b"DATA":
                self._say("354 go on")
                content = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.mails.append(email.message_from_bytes(content))
            self._say("221 bye" if command == b"QUIT" else "250 ok")
            if command == b"QUIT":
                return

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


def _text(mail: Message) -> str:
    parts = [part.get_payload(decode=True) for part in mail.walk() if not part.is_multipart()]
    return "\n".join(part.decode() for part in parts if isinstance(part, bytes))
