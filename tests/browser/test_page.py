# ruff: noqa: E501 - JavaScript in strings stays on its line
"""The live page in Debian's Chromium against a replayed recording: its numbers, its connection, its behaviour."""

from __future__ import annotations

import math
import os
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from browser.world import Cable, Exporter, OneServer, Watched, replayed, until
from vllmeter.recording.replay import ReplayServer

World = tuple[ReplayServer, Exporter]

READ = """async () => {
  const snapshot = await (await fetch("snapshot.json")).json();
  const page = {};
  for (const card of document.querySelectorAll(".card")) {
    const figures = {};
    for (const node of card.querySelectorAll("dd[data-v]")) figures[node.dataset.v] = JSON.parse(node.dataset.raw ?? "null");
    figures.state = JSON.parse(card.querySelector("[data-v=state]").dataset.raw);
    page[card.dataset.server] = { wall: vllmeter.store.servers.get(card.dataset.server).now.reading_wall, figures };
  }
  const drawn = document.body.dataset.wall === String(vllmeter.store.wall);
  return { snapshot, page, drawn, nvml: vllmeter.store.host.nvml_wall };
}"""


def total(server: dict[str, Any], family: str) -> float | None:
    """Sum of a family of the server's reading."""
    values = [entry["value"] for entry in (server["reading"] or {"scalars": {}})["scalars"].get(family, [])]
    return sum(values) if values else None


def test_values_on_the_page_are_those_of_the_snapshot_at_that_second(world: World, watched: Watched) -> None:
    """Running, waiting, KV, TTFT, p95 interval, ITL, preemptions, memory: exactly, for every server."""
    page = watched.open(world[1].url)
    compared: dict[str, int] = {}
    deadline = time.monotonic() + 25
    while time.monotonic() < deadline and sum(n >= 2 for n in compared.values()) < 3:
        data = page.evaluate(READ)
        if not data["drawn"] or data["nvml"] != data["snapshot"]["nvml"]["wall"]:
            page.wait_for_timeout(50)
            continue  # another second than this snapshot's
        for server in data["snapshot"]["servers"]:
            shown = data["page"][server["name"]]
            if shown["wall"] is None or shown["wall"] != server["reading_wall"]:
                continue  # the page shows another second than this snapshot
            figures, window = shown["figures"], server["windows"]["60s"]
            assert figures["state"] == server["state"]
            assert figures["running"] == total(server, "requests_running")
            assert figures["waiting"] == total(server, "requests_waiting")
            usage = [entry["value"] for entry in server["reading"]["scalars"].get("kv_cache_usage_ratio", [])]
            assert figures["kv"] == (max(usage) if usage else None)
            assert figures["ttft"] == window["ttft_mean"]
            assert figures["p95"] == window["ttft_quantiles"].get("0.95")
            assert figures["itl"] == window["itl_mean"]
            assert figures["preemptions"] == window["preemptions"]
            assert figures["memory"] == sum(row["used"]["value"] for row in server["memory"])
            compared[server["name"]] = compared.get(server["name"], 0) + 1
        page.wait_for_timeout(150)
    assert len(compared) == 3, compared


def test_history_is_there_at_once_and_follows(world: World, watched: Watched) -> None:
    """The second page that opens shows the seconds before it was opened, then goes on once a second."""
    page = watched.open(world[1].url)
    until(page, "() => [...vllmeter.store.servers.values()].every((s) => s.loaded && s.t.length > 10)")
    before = page.evaluate("() => vllmeter.store.servers.get('vllm-qwen3').t.length")
    page.wait_for_timeout(3200)
    rows = page.evaluate("() => vllmeter.store.servers.get('vllm-qwen3').t")
    assert 2 <= len(rows) - before <= 4
    assert all(late - early > 0.5 for early, late in pairwise(rows))


def test_the_budget_table_has_the_numbers_of_check(world: World, watched: Watched) -> None:
    """The same figures as `vllmeter check --format json` would print for this snapshot."""
    page = watched.open(world[1].url)
    page.locator("#budgets").scroll_into_view_if_needed()
    page.wait_for_selector("#budget-table tbody tr")
    rows = {
        row[0]: row
        for row in page.evaluate(
            "() => [...document.querySelectorAll('#budget-table tbody tr')].map((tr) => [...tr.children].map((td) => td.textContent))"
        )
    }
    for server in world[1].get("/snapshot.json")["servers"]:
        memory = server["memory"][0]
        shown = rows[server["name"]]
        assert shown[4] == f"{memory['budget']['value'] / 2**30:.2f}"
        assert shown[5] == f"{memory['used']['value'] / 2**30:.2f}"
        assert shown[6] == f"{memory['high_water']['value'] / 2**30:.2f}"
        tokens = server["kv_capacity_tokens"]["value"]
        assert shown[9] == (f"{tokens:,.0f}" if tokens is not None else "–")
        assert shown[11] == server["attribution"]["method"]


def test_a_killed_server_is_gone_within_three_seconds_and_its_lines_stop(world: World, watched: Watched) -> None:
    """Refused connections: the state says so in words, the figures are absent, no zero is drawn."""
    replay, exporter = world
    page = watched.open(exporter.url)
    until(page, "() => vllmeter.store.servers.get('vllm-embed').loaded")
    state = "() => JSON.parse(document.querySelector('[data-server=vllm-embed] [data-v=state]').dataset.raw)"
    try:
        replay.fault("vllm-embed", "kill")
        took = until(page, f"() => ({state})() === 'gone'", seconds=8)
        print(f"\nkilled -> 'gone' on the page: {took:.2f} s")
        assert took < 3.0
        page.wait_for_timeout(2500)
        seen = page.evaluate(
            """() => {
              const s = vllmeter.store.servers.get("vllm-embed");
              const card = document.querySelector(".card[data-server=vllm-embed]");
              return { age: vllmeter.store.wall - s.t.at(-1), memory: s.memory.at(-1), pill: card.querySelector("[data-v=state]").textContent,
                unexplained: [...document.querySelectorAll(".card dd")].filter((dd) => dd.textContent === "–" && !dd.title).map((dd) => dd.dataset.v),
                running: card.querySelector("dd[data-v=running]").textContent, reason: card.querySelector("[data-v=reason]").textContent };
            }"""
        )
        assert seen["age"] > 2.0
        assert seen["memory"] != 0
        assert seen["running"] == "–"
        assert seen["unexplained"] == []
        assert "gone" in seen["pill"]
        assert "refused" in seen["reason"]
    finally:
        replay.fault("vllm-embed", "none")
    until(page, f"() => ['ready', 'busy', 'late'].includes(({state})())", seconds=10)
    # The gap stays a gap: no row lies in it, and the chart has a break there.
    gap = page.evaluate(
        """() => {
          const s = vllmeter.store.servers.get("vllm-embed");
          let most = 0;
          for (let i = 1; i < s.t.length; i++) most = Math.max(most, s.t[i] - s.t[i - 1]);
          return most;
        }"""
    )
    assert gap > 2.5


def test_a_dead_engine_has_no_gauges_and_the_page_says_why(world: World, watched: Watched) -> None:
    """/health 503 beside a frozen 200: queue and KV cache are absent with their reason, what is a sum stays."""
    replay, exporter = world
    page = watched.open(exporter.url)
    until(page, "() => vllmeter.store.servers.get('vllm-embed').loaded")
    state = "() => vllmeter.store.servers.get('vllm-embed').now.state"
    try:
        replay.fault("vllm-embed", "health503")
        until(page, f"() => ({state})() === 'engine_dead'", seconds=8)
        page.wait_for_timeout(1500)
        seen = page.evaluate(
            """() => {
              const card = document.querySelector(".card[data-server=vllm-embed]");
              const figures = {};
              for (const dd of card.querySelectorAll("dd[data-v]")) figures[dd.dataset.v] = [dd.textContent, dd.title];
              return { figures, reason: card.querySelector("[data-v=reason]").textContent };
            }"""
        )
    finally:
        replay.fault("vllm-embed", "none")
    for name in ("running", "waiting", "kv"):
        assert seen["figures"][name] == ["–", "the engine is dead: its gauges are frozen"], name
    assert seen["figures"]["preemptions"][0] != "–"
    assert "its gauges are frozen and not shown" in seen["reason"]
    until(page, f"() => ['ready', 'busy', 'late'].includes(({state})())", seconds=10)
    until(
        page,
        "() => document.querySelector('[data-server=vllm-embed] dd[data-v=running]').textContent !== '–'",
        seconds=5,
    )


def test_a_slow_server_is_late_and_not_gone(world: World, watched: Watched) -> None:
    """vLLM answers seconds late under load: the line stops, nothing is called gone."""
    replay, exporter = world
    page = watched.open(exporter.url)
    page.evaluate(
        """() => {
          globalThis.seen = new Set();
          setInterval(() => seen.add(vllmeter.store.servers.get("vllm-reranker").now.state), 100);
        }"""
    )
    try:
        replay.fault("vllm-reranker", "slow", seconds=4.5)
        until(page, "() => seen.has('late')", seconds=10)
        age = page.evaluate("() => vllmeter.store.wall - vllmeter.store.servers.get('vllm-reranker').t.at(-1)")
        assert age > 1.5
    finally:
        replay.fault("vllm-reranker", "none")
    until(page, "() => ['ready', 'busy'].includes(vllmeter.store.servers.get('vllm-reranker').now.state)", seconds=12)
    assert "gone" not in page.evaluate("() => [...seen]")


def test_a_cut_connection_resumes_without_a_hole_and_says_so(world: World, watched: Watched) -> None:
    """Four seconds without a connection: afterwards every second is there, and the page says what happened."""
    cable = Cable(world[1].port)
    watched.expected = ("net::ERR", "EventSource")
    try:
        page = watched.open(cable.url)
        until(page, "() => [...vllmeter.store.servers.values()].every((s) => s.loaded)")
        cable.cut()
        until(page, "() => document.getElementById('connection').textContent.includes('lost')")
        page.wait_for_timeout(4000)
        cable.mend()
        until(page, "() => document.getElementById('connection').textContent.includes('live')")
        until(page, "() => document.getElementById('notices').textContent.includes('no hole')")
        page.wait_for_timeout(1500)
        gaps = page.evaluate(
            """() => [...vllmeter.store.servers.values()].map((s) => {
              const t = s.t.filter((x) => x > vllmeter.store.wall - 9);
              return Math.max(...t.slice(1).map((x, i) => x - t[i]));
            })"""
        )
        assert max(gaps) < 2.2, gaps
    finally:
        cable.close()


def test_a_tab_in_the_background_lets_go_of_its_connection_and_comes_back_without_a_hole(
    world: World, watched: Watched
) -> None:
    """Six tabs would use up what a browser opens to one host."""
    page = watched.open(world[1].url)
    until(page, "() => [...vllmeter.store.servers.values()].every((s) => s.loaded)")
    hide = """(hidden) => {
      vllmeter.stream.sleepAfter = 100;
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    until(page, "() => vllmeter.stream.now === 'asleep' && vllmeter.stream.source === null")
    page.wait_for_timeout(4000)
    page.evaluate(hide, False)
    until(page, "() => vllmeter.stream.now === 'live'")
    page.wait_for_timeout(1500)
    gaps = page.evaluate(
        """() => [...vllmeter.store.servers.values()].map((s) => {
          const t = s.t.filter((x) => x > vllmeter.store.wall - 9);
          return Math.max(...t.slice(1).map((x, i) => x - t[i]));
        })"""
    )
    assert max(gaps) < 2.2, gaps
    assert page.locator("#notices .notice").count() == 0


def test_a_restarted_exporter_is_said_and_the_page_goes_on(tmp_path: Path, watched: Watched) -> None:
    """The new process knows nothing of before: the page keeps what it has and says how much is missing."""
    server = OneServer()
    exporter = Exporter(
        tmp_path, f"servers: [{{name: one, url: 'http://127.0.0.1:{server.port}'}}]\nnvml: {{enabled: false}}\n"
    )
    watched.expected = ("net::ERR", "EventSource")
    try:
        page = watched.open(exporter.url)
        until(page, "() => vllmeter.store.servers.get('one').t.length > 3")
        exporter.stop()
        assert "Traceback" not in exporter.log()
        until(page, "() => document.getElementById('connection').textContent.includes('lost')")
        exporter.start()
        until(page, "() => document.getElementById('notices').textContent.includes('started again')", seconds=15)
        until(
            page,
            "() => vllmeter.store.servers.get('one').loaded && vllmeter.store.servers.get('one').t.length > 6",
            seconds=15,
        )
        rows = page.evaluate("() => vllmeter.store.servers.get('one').t")
        assert rows == sorted(set(rows))
    finally:
        watched.close()
        exporter.stop()
        server.close()


RANGES = "() => [...document.querySelectorAll('.card')].flatMap((card) => vllmeter.cards.cards.get(card.dataset.server).charts.map((c) => c.plot && [c.plot.scales.x.min, c.plot.scales.x.max])).filter(Boolean)"


def test_pause_zoom_and_the_summary_of_a_picked_window(world: World, watched: Watched) -> None:
    """All charts stand still and move together; the picked window's figures are the exporter's own."""
    page = watched.open(world[1].url, permissions=["clipboard-read", "clipboard-write"])
    until(page, "() => [...vllmeter.store.servers.values()].every((s) => s.loaded && s.t.length > 30)", seconds=45)
    page.keyboard.press("Space")
    until(page, "() => vllmeter.fixed !== null")
    page.wait_for_timeout(200)
    ranges = page.evaluate(RANGES)
    page.wait_for_timeout(1500)
    assert page.evaluate(RANGES) == ranges
    assert len(ranges) >= 15
    assert all(pair == ranges[0] for pair in ranges)
    page.locator("#pause").click()
    until(page, "() => vllmeter.fixed === null")
    # drag over the right half of one chart
    page.locator("[data-span='60']").click()
    area = page.locator(".card[data-server=vllm-qwen3] [data-chart=ttft] .u-over")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 30, steps=4)
    page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 30, steps=4)
    page.mouse.up()
    until(page, "() => vllmeter.fixed !== null && document.querySelectorAll('#summary tbody tr').length === 3")
    ranges = page.evaluate(RANGES)
    assert all(pair == ranges[0] for pair in ranges)
    low, high = ranges[0]
    assert 15 < high - low < 40
    cells = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#summary tbody tr[data-server=vllm-qwen3] td')].map((td) => [td.dataset.column, td.textContent]))"
    )
    answer = world[1].get(f"/api/window?server=vllm-qwen3&from={low:.3f}&to={high:.3f}")["windows"][0]["figures"]
    assert cells["requests"] == f"{answer['ttft_requests']:,}"
    assert cells["preempted"] == f"{answer['preemptions']:,.0f}"
    page.get_by_role("button", name="Copy as Markdown").click()
    until(page, "() => document.querySelector('#summary [role=status]').textContent === 'Copied.'")
    text = page.evaluate("() => navigator.clipboard.readText()")
    assert "| vllm-qwen3 |" in text
    assert f"| {cells['requests']} |" in text
    with page.expect_download() as download:
        page.locator("#summary a.button").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith("time,server,")
    assert len(lines) > 40
    page.keyboard.press("Escape")
    until(page, "() => vllmeter.fixed === null && document.getElementById('summary').hidden")


def test_pause_holds_the_figures_too_and_says_since_when(tmp_path: Path, watched: Watched) -> None:
    """A number can be read and copied in peace; what breaks meanwhile is said, and going on shows the present."""
    server = OneServer()
    exporter = Exporter(
        tmp_path, f"servers: [{{name: one, url: 'http://127.0.0.1:{server.port}'}}]\nnvml: {{enabled: false}}\n"
    )
    raw = "() => document.querySelector('dd[data-v=running]').dataset.raw"
    try:
        server.running = 3
        page = watched.open(exporter.url)
        until(page, f"() => ({raw})() === '3'")
        page.keyboard.press("Space")
        until(page, "() => !document.getElementById('standing').hidden")
        server.running = 7
        until(page, "() => vllmeter.store.servers.get('one').now.running === 7")
        page.wait_for_timeout(700)
        assert page.evaluate(raw) == "3"
        assert page.locator("[data-v='queue.0']").inner_text() == "3"
        assert page.evaluate("() => document.getElementById('standing').textContent").startswith("❚❚ figures of")
        server.close()
        until(page, "() => document.getElementById('standing').textContent.includes('1 server got a problem')")
        assert page.title() == "(1) vllmeter"
        assert "one: gone" in page.locator("#said").inner_text()
        assert page.evaluate(raw) == "3"
        page.keyboard.press("Space")
        until(page, f"() => ({raw})() !== '3' && document.getElementById('standing').hidden")
        assert page.locator("dd[data-v=running]").inner_text() == "–"
    finally:
        watched.close()
        exporter.stop()


def test_what_is_looked_at_is_not_thrown_away(world: World, watched: Watched) -> None:
    """While the page stands still its rows stay, also when they are older than a quarter of an hour; an hour is the limit."""
    page = watched.open(world[1].url)
    until(page, "() => vllmeter.store.servers.get('vllm-qwen3').loaded")
    left = page.evaluate(
        """() => {
          const { store } = vllmeter;
          const server = Object.assign(Object.create(store.servers.get("vllm-qwen3")), {
            t: Array.from({ length: 5000 }, (_, i) => store.wall - 5000 + i), columns: {}, memoryT: [], memory: [] });
          const trim = (keep) => { store.keep = keep; let before; server.trim = (at) => { before = at; };
            store.servers.set("x", server); store.tick({ ...store, servers: [...store.order.map((name) => ({ name, now: store.servers.get(name).now })), { name: "x", now: null }] });
            return store.wall - before; };
          const out = [trim(Infinity), trim(store.wall - 2000), trim(store.wall - 9000)];
          store.keep = Infinity;
          return out;
        }"""
    )
    assert left == pytest.approx([930, 2000, 3600], abs=1)


def test_a_selected_number_stays_while_it_is_copied(tmp_path: Path, watched: Watched) -> None:
    """Text under the selection is not written over; after it, the newest value is there at once."""
    server = OneServer()
    exporter = Exporter(
        tmp_path, f"servers: [{{name: one, url: 'http://127.0.0.1:{server.port}'}}]\nnvml: {{enabled: false}}\n"
    )
    try:
        server.running = 41
        page = watched.open(exporter.url)
        until(page, "() => document.querySelector('dd[data-v=running]').textContent === '41'")
        page.evaluate("() => getSelection().selectAllChildren(document.querySelector('dd[data-v=running]'))")
        server.running = 42
        until(page, "() => vllmeter.store.servers.get('one').now.running === 42")
        page.wait_for_timeout(700)
        assert page.evaluate("() => getSelection().toString()") == "41"
        page.evaluate("() => getSelection().removeAllRanges()")
        until(page, "() => document.querySelector('dd[data-v=running]').textContent === '42'")
    finally:
        watched.close()
        exporter.stop()
        server.close()


LONG = "a-long-name-" * 5 + "end"
"""As long as the configuration allows."""


@pytest.mark.parametrize(("width", "height"), [(390, 844), (750, 450), (1500, 1000)])
def test_long_names_and_zoom_fit(tmp_path: Path, watched: Watched, width: int, height: int) -> None:
    """A name of 63 letters makes nothing wider than the screen; at 200 % zoom the head scrolls away with the page."""
    server = OneServer(model="m" * 120)
    exporter = Exporter(
        tmp_path,
        f"servers: [{{name: {LONG}, url: 'http://127.0.0.1:{server.port}'}}]\nnvml: {{enabled: false}}\n",
    )
    try:
        page = watched.open(exporter.url, viewport={"width": width, "height": height})
        until(page, "() => document.querySelector('.card .model').textContent.includes('mmm')")
        page.locator("#pick").click()
        until(page, "() => document.querySelectorAll('#summary tbody tr').length === 1")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        head = page.locator(".card h3").first
        box, card = head.bounding_box(), page.locator(".card").first.bounding_box()
        assert box["x"] + box["width"] <= card["x"] + card["width"]
        assert head.get_attribute("title") == LONG
        place = page.evaluate("() => getComputedStyle(document.querySelector('.top')).position")
        assert place == ("static" if height < 560 or width < 640 else "sticky")
    finally:
        watched.close()
        exporter.stop()
        server.close()


def test_paper_is_light_and_has_every_card(world: World, watched: Watched) -> None:
    """Printing a dark page in the middle of a test gives dark text on white and all charts; then all is as before."""
    page = watched.open(world[1].url, color_scheme="dark", viewport={"width": 1000, "height": 400})
    until(page, "() => vllmeter.store.servers.get('vllm-reranker').loaded")
    page.evaluate(
        """() => addEventListener("beforeprint", () => {
          globalThis.printed = {
            theme: document.documentElement.dataset.theme,
            filled: [...vllmeter.cards.cards.values()].map((card) => card.charts.length),
          };
        })"""
    )
    assert page.pdf(format="A4").startswith(b"%PDF")
    printed = page.evaluate("() => printed")
    assert printed["theme"] == "light"
    assert min(printed["filled"]) >= 5
    until(
        page,
        "() => document.documentElement.dataset.theme === undefined && document.querySelectorAll('.card canvas').length > 4",
    )


def test_a_run_is_started_shaded_and_stopped_from_the_page(world: World, watched: Watched) -> None:
    """The dialog marks it, the exporter knows it, the page can end it; a mistake is said in words."""
    watched.expected = ("409",)
    page = watched.open(world[1].url)
    page.locator("#start-run").click()
    page.locator("#run-name").fill("page-test")
    page.locator("#run-server").select_option("vllm-qwen3")
    page.get_by_role("button", name="Start", exact=True).click()
    until(page, "() => document.querySelector('#runs .run')?.textContent.includes('page-test')")
    assert [run["run"] for run in world[1].get("/snapshot.json")["runs"]] == ["page-test"]
    page.locator("#start-run").click()
    page.locator("#run-name").fill("page-test")
    page.locator("#run-server").select_option("vllm-qwen3")
    page.get_by_role("button", name="Start", exact=True).click()
    until(page, "() => document.getElementById('run-error').textContent.includes('already active')")
    page.locator("#run-cancel").click()
    page.get_by_role("button", name="Stop run page-test").click()
    until(page, "() => document.getElementById('runs').hidden")
    assert world[1].get("/snapshot.json")["runs"] == []
    assert page.evaluate("() => vllmeter.store.runs.filter((run) => run.run === 'page-test' && run.ended).length") == 1


def test_filter_sort_and_collapse(world: World, watched: Watched) -> None:
    """Twenty servers stay readable by what three show: fewer cards, another order, heads only."""
    page = watched.open(world[1].url)
    page.locator("#filter").fill("qwen")
    until(page, "() => [...document.querySelectorAll('.card')].filter((c) => !c.hidden).length === 1")
    assert page.locator("#count").inner_text() == "1 of 3"
    page.locator("#filter").fill("nobody")
    until(page, "() => !document.getElementById('nothing').hidden")
    page.locator("#filter").fill("")
    page.locator("#sort").select_option("memory")
    until(page, "() => document.querySelector('.card').dataset.server === 'vllm-qwen3'")
    page.locator("#toggle-all").click()
    until(page, "() => document.querySelectorAll('.card canvas').length === 0")
    page.locator("#toggle-all").click()
    until(page, "() => document.querySelectorAll('.card canvas').length > 10")


def test_the_keyboard_reaches_charts_and_reads_values(world: World, watched: Watched) -> None:
    """Tab to a chart, arrow keys move the cursor of all charts."""
    page = watched.open(world[1].url)
    until(page, "() => vllmeter.store.servers.get('vllm-qwen3').loaded")
    page.locator("#pause").click()
    page.locator(".card[data-server=vllm-qwen3] [data-chart=queue]").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    until(page, "() => vllmeter.cards.cards.get('vllm-qwen3').charts[0].cursor !== null")
    cursors = page.evaluate("() => vllmeter.cards.cards.get('vllm-qwen3').charts.map((c) => c.cursor !== null)")
    assert all(cursors)
    said = page.locator("#said").inner_text()
    assert re.match(r"\d\d:\d\d:\d\d: running \d+, waiting \d+$", said), said


@pytest.mark.parametrize(
    ("width", "height", "scheme"),
    [(1500, 1000, "light"), (1500, 1000, "dark"), (390, 844, "light"), (390, 844, "dark")],
)
def test_accessibility(world: World, watched: Watched, width: int, height: int, scheme: str) -> None:
    """axe-core finds nothing in either colour scheme, wide or on a phone; nothing is wider than the screen."""
    source = os.environ.get("VLLMETER_AXE")
    page = watched.open(world[1].url, viewport={"width": width, "height": height}, color_scheme=scheme)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.locator("#pick").click()
    until(page, "() => document.querySelectorAll('#summary tbody tr').length === 3")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('button, input, select, a, [tabindex]')].filter((n) => !(n.getAttribute('aria-label') || n.textContent.trim() || n.labels?.length || n.getAttribute('aria-labelledby'))).length"
    )
    assert unnamed == 0
    if not source:
        pytest.skip(
            "axe-core is not here: scripts/test --leg browser fetches it with npm; names and width were checked"
        )
    page.evaluate(Path(source).read_text(encoding="utf-8"))
    found = page.evaluate(
        "async () => (await axe.run(document)).violations.map((v) => [v.id, v.impact, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' + n.failureSummary)])"
    )
    assert found == []


def test_outside_text_stays_text_and_an_event_is_on_the_screen_in_time(tmp_path: Path, watched: Watched) -> None:
    """Hostile model names are shown as they are; from a changed gauge to its number on the page at most 1.5 s."""
    server = OneServer(model="<img src=x onerror=document.title='pwned'>")
    server.alerts = [
        {
            "state": "firing",
            "labels": {"alertname": "VllmeterTest", "severity": "critical", "server": "one"},
            "annotations": {
                "summary": "<script>document.title='pwned'</script>",
                "runbook_url": "https://example.org/VllmeterTest.md",
            },
            "activeAt": "2026-12-01T00:00:00Z",
        }
    ]
    exporter = Exporter(
        tmp_path,
        f"servers: [{{name: one, url: 'http://127.0.0.1:{server.port}'}}]\nnvml: {{enabled: false}}\n"
        f"prometheus: {{url: 'http://127.0.0.1:{server.port}'}}\n",
    )
    try:
        page = watched.open(exporter.url)
        until(page, "() => document.querySelector('.card .model').textContent.includes('<img src=x')")
        assert page.evaluate("() => document.querySelectorAll('img').length") == 1  # the logo
        until(page, "() => document.getElementById('alerts').textContent.includes('VllmeterTest')")
        assert "<script>" in page.locator("#alerts").inner_text()
        assert page.locator("#alerts a").get_attribute("href") == "https://example.org/VllmeterTest.md"
        assert "pwned" not in page.title()
        took = []
        for number in range(1, 9):
            time.sleep(0.13 * number)  # at any moment of the sampling interval
            server.running = 100 + number
            took.append(
                until(
                    page,
                    "(n) => document.querySelector('dd[data-v=running]').dataset.raw === String(n)",
                    server.running,
                )
            )
        took.sort()
        print(
            f"\nevent to pixel: median {took[len(took) // 2]:.2f} s, worst of {len(took)} {took[-1]:.2f} s (target 1.5 s)"
        )
        assert took[len(took) // 2] < 1.5
    finally:
        watched.close()
        exporter.stop()
        server.close()


def test_two_hundred_servers_do_not_freeze_the_browser(tmp_path: Path, watched: Watched) -> None:
    """201 replayed servers: scripting time per second, collapsed and with open charts, while scrolling works."""
    with replayed(tmp_path, start=80.0, copies=67) as (_, exporter):
        page = watched.open(exporter.url, wait=False)
        until(page, "() => document.querySelectorAll('.card').length === 201", seconds=40)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def scripting(seconds: float) -> tuple[float, float]:
            def metrics() -> dict[str, float]:
                return {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}

            before, began = metrics(), time.monotonic()
            page.wait_for_timeout(seconds * 1000)
            after, took = metrics(), time.monotonic() - began
            return (after["ScriptDuration"] - before["ScriptDuration"]) / took, (
                after["TaskDuration"] - before["TaskDuration"]
            ) / took

        script, task = scripting(5)
        print(
            f"\n201 servers, heads only: scripting {script * 1000:.0f} ms a second, all work {task * 1000:.0f} ms a second"
        )
        filled = page.evaluate("() => [...vllmeter.cards.cards.values()].filter((c) => c.filled).length")
        assert filled < 60
        page.locator("#toggle-all").click()
        until(page, "() => document.querySelectorAll('.card canvas').length > 8", seconds=30)
        script_open, task_open = scripting(5)
        print(
            f"201 servers, all open: scripting {script_open * 1000:.0f} ms a second, all work {task_open * 1000:.0f} ms a second"
        )
        page.locator(".card[data-server=vllm-qwen3-40]").scroll_into_view_if_needed()
        until(
            page,
            "() => !document.querySelector('.card').firstChild && document.querySelectorAll('.card canvas').length > 8",
            seconds=20,
        )
        assert page.evaluate("() => document.querySelectorAll('.card canvas').length") < 120
        ticks = page.evaluate("() => vllmeter.store.received")
        page.wait_for_timeout(6000)
        ticks = page.evaluate("() => vllmeter.store.received") - ticks
        print(f"201 servers: {ticks / 6:.1f} events a second")
        assert ticks >= 2
        assert not math.isnan(script)
        assert script < 0.5
        assert script_open < 0.7
        watched.close()
