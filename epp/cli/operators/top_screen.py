"""The live view of `epp top`: a table of endpoints, and the details of one."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from epp.app.observing.fleet_view import EndpointsPage
from epp.app.observing.views import DecisionView
from epp.cli.operators.explain import line
from epp.cli.operators.fleet_history import COLUMNS, FleetHistory, FleetRow
from epp.errors import ConfigError
from epp.printable import printable

ReadFleet = Callable[[], EndpointsPage]
ReadDecisions = Callable[[], Sequence[DecisionView]]


class EndpointScreen(ModalScreen[None]):
    """The details of one endpoint, and its last decisions."""

    DEFAULT_CSS = """
    EndpointScreen { align: center middle; }
    EndpointScreen > VerticalScroll { width: 90%; height: auto; max-height: 90%; padding: 0 2;
                                      border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Back"),
    ]

    def __init__(self, row: FleetRow, decisions: Sequence[DecisionView]) -> None:
        super().__init__()
        self.text = "\n".join(_details(row, decisions))

    def compose(self) -> ComposeResult:
        """Yield the text, without markup; arrow keys scroll it."""
        with VerticalScroll():
            yield Static(Text(self.text), id="endpoint")


class TopApp(App[None]):
    """The endpoints of a picker, read again every `seconds`; `read` may raise `ConfigError`."""

    TITLE = "epp top"
    DEFAULT_CSS = """
    #status { height: 1; background: $panel; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s,right", "sort(1)", "Sort by next"),
        Binding("S,left", "sort(-1)", "previous"),
        Binding("r", "reverse", "Reverse"),
        Binding("p,space", "pause", "Pause"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, read: ReadFleet, decisions: ReadDecisions, seconds: float) -> None:
        super().__init__()
        self._read = read
        self._decisions = decisions
        self._seconds = seconds
        self._sorted_by = 0
        self._reversed = False
        self._paused = False
        self._problem = ""
        self._history = FleetHistory()
        self._page: EndpointsPage | None = None
        self._rows: dict[str, FleetRow] = {}
        self._table: DataTable[Text] = DataTable(
            id="endpoints", cursor_type="row", zebra_stripes=True
        )
        self._line = Static(id="status")

    def compose(self) -> ComposeResult:
        """Yield the status line, the table and the keys."""
        yield self._line
        yield self._table
        yield Footer()

    def on_mount(self) -> None:
        """Read the first page, and schedule the next ones."""
        self.theme = "textual-ansi" if self.ansi_color else self.theme
        self._look()
        self.set_interval(self._seconds, self._look)

    def _look(self) -> None:
        if not self._paused:
            self.run_worker(self._fetch, thread=True, exclusive=True, group="read")

    def _fetch(self) -> None:
        try:
            page, problem = self._read(), ""
        except ConfigError as error:
            page, problem = None, str(error)
        self.call_from_thread(self._take, page, problem)

    def _take(self, page: EndpointsPage | None, problem: str) -> None:
        self._problem = problem
        if page is not None:
            self._history.add(page)
            self._page = page
        self._draw()

    def _draw(self) -> None:
        table = self._table
        if not table.is_attached:  # the app is shutting down
            return
        chosen = self._chosen(table)
        rows = self._history.rows(COLUMNS[self._sorted_by], reverse=self._reversed)
        self._rows = {row.now.endpoint: row for row in rows}
        table.clear(columns=True)
        mark = " ▼" if self._reversed else " ▲"
        for at, column in enumerate(COLUMNS):
            table.add_column(column.head + (mark if at == self._sorted_by else ""))
        for row in self._rows.values():  # no name comes again, which the table does not take
            cells = [Text(printable(column.text(row))) for column in COLUMNS]
            table.add_row(*cells, key=row.now.endpoint)
        if chosen in self._rows:
            table.move_cursor(row=table.get_row_index(chosen))
        self._line.update(Text(self._status()))

    def _chosen(self, table: DataTable[Text]) -> str:
        if not table.row_count:
            return ""
        key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        return key or ""

    def _status(self) -> str:
        if self._problem:
            return printable(self._problem)
        if self._page is None:
            return "reading"
        page = self._page
        ready = sum(each.state == "ready" for each in page.endpoints)
        parts = [
            f"pool {page.pool}",
            f"{ready} of {len(page.endpoints)} endpoints ready",
            f"{self._history.decisions_per_second:.1f} decisions/s",
            f"{sum(each.queued_prefill_ms > 0 for each in page.endpoints)} busy",
        ]
        if self._paused:
            parts.append("paused")
        return printable(" · ".join(parts))

    def action_sort(self, step: int) -> None:
        """Sort by another column; numbers in descending order."""
        self._sorted_by = (self._sorted_by + step) % len(COLUMNS)
        self._reversed = self._sorted_by > 1
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._reversed = not self._reversed
        self._draw()

    def action_pause(self) -> None:
        """Pause reading, or resume it."""
        self._paused = not self._paused
        self._draw()
        self._look()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the details of an endpoint."""
        row = self._rows.get(str(event.row_key.value))
        if row is not None:
            self.run_worker(lambda: self._inspect(row), thread=True, group="inspect")

    def _inspect(self, row: FleetRow) -> None:
        try:
            decisions: Sequence[DecisionView] = self._decisions()
        except ConfigError:
            decisions = ()
        self.call_from_thread(self.push_screen, EndpointScreen(row, decisions))


def _details(row: FleetRow, decisions: Sequence[DecisionView]) -> list[str]:
    now = row.now
    of_it = [
        each for each in decisions if each.profiles and each.profiles[-1].winner == now.endpoint
    ]
    lines = [f"{now.endpoint} · {now.target} · {now.state}", ""]
    lines += [f"{column.head:12}{column.text(row)}" for column in COLUMNS[2:]]
    lines += [
        f"{'cache':12}{now.cached_tokens:,} of {now.cache_tokens:,} tokens",
        f"{'KV events':12}{'correct it' if now.events_live else 'none'}",
        "",
        f"the last decisions for it, of {len(decisions)}:",
        *(line(each) for each in reversed(of_it[-15:])),
    ]
    return [printable(each) for each in lines]
