/* Keeps the dashboard up to date. The server lays everything out and sends it as a frame; this file only puts the
   frame's texts into their places, by their keys, and asks for the next one. Without it the page is whole, but still. */
(() => {
  "use strict";

  const root = document.querySelector(".pgq-dashboard");
  if (!root || !root.dataset.frameUrl) return;

  const words = JSON.parse(root.dataset.words);
  const language = document.documentElement.lang || "en";
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const fill = (text, values) => text.replace(/%\((\w+)\)s/g, (_, name) => values[name]);

  // -- moments and lengths --------------------------------------------------------------------------------------

  // The database's clock, by one that nobody sets. A frame that comes late makes it slow, so the quickest one counts,
  // but not for ever: clocks drift.
  let offset = -Infinity;
  const now = () => performance.now() + offset;

  function setClock(takenAt) {
    offset = Math.max(Date.parse(takenAt) - performance.now(), offset - 5);
    const apart = Math.abs(Date.now() - now()) / 1000;
    const note = part("clock");
    note.hidden = apart <= 5;
    if (!note.hidden) setText(note, fill(words.clock, { time: length(apart) }));
  }

  function length(seconds) {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= 2 * size) return fill(words[unit], { n: Math.round(seconds / size) });
    }
    return fill(words.s, { n: Math.max(0, Math.round(seconds)) });
  }

  function clock(milliseconds, options) {
    const moment = new Date(milliseconds);
    try {
      return moment.toLocaleTimeString(language, { hourCycle: "h23", timeZone: root.dataset.zone, ...options });
    } catch {
      return moment.toLocaleTimeString(language, options); // a time zone that this browser does not know
    }
  }

  function number(value) {
    const digits = value < 10 ? 2 : value < 100 ? 1 : 0;
    return value.toLocaleString(language, { maximumFractionDigits: digits });
  }

  function written(value, unit) {
    if (value === null || value === undefined) return words.none;
    if (unit !== "s") return number(value);
    if (value >= 120) return (value < 300 ? "" : "≥ ") + length(value); // 300: what a histogram ends with
    return value < 1 ? fill(words.ms, { n: number(value * 1000) }) : fill(words.s, { n: number(value) });
  }

  // -- nodes ----------------------------------------------------------------------------------------------------

  function setText(node, text) {
    // The text node stays, and what somebody has marked in it.
    if (node.textContent === text) return;
    if (node.childNodes.length === 1 && node.firstChild.nodeType === Node.TEXT_NODE) node.firstChild.data = text;
    else node.textContent = text;
  }

  function setAttribute(node, name, value) {
    if (value === null || value === undefined || value === "") node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }

  function make(tag, attributes, ...children) {
    const space = /^(svg|path)$/.test(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
    const node = document.createElementNS(space, tag);
    for (const name in attributes) setAttribute(node, name, attributes[name]);
    node.append(...children);
    return node;
  }

  const hovers = matchMedia("(hover: hover)");
  const isHeld = (node) => node.contains(document.activeElement) || (hovers.matches && node.matches(":hover"));

  const MOST_HELD = 100;

  // The children of a node, by their keys, or their places where those are all that they have. While somebody points at
  // them, or has the focus in there, none changes its place and none goes away; and of new ones no more come than fit.
  function sync(parent, items, create, paint, held = false) {
    const known = new Map([...parent.children].map((child, index) => [child.dataset.key ?? String(index), child]));
    let place = parent.firstElementChild;
    items.forEach((item, index) => {
      const key = String(item.key ?? index);
      let child = known.get(key);
      known.delete(key);
      if (!child) {
        if (held && parent.children.length >= MOST_HELD) return;
        child = create(item);
        child.dataset.key = key;
        parent.insertBefore(child, held ? null : place);
      } else if (child === place) place = place.nextElementSibling;
      else if (!held) parent.insertBefore(child, place);
      paint(child, item, index);
    });
    for (const child of known.values()) {
      if (held) child.classList.add("pgq-gone");
      else child.remove();
    }
  }

  // A text that is a link where there is somewhere to go.
  function setLink(holder, item, more = {}) {
    let node = holder.firstElementChild;
    if (!node || (node.tagName === "A") !== Boolean(item.url)) {
      if (node && node.contains(document.activeElement)) return;
      const other = make(item.url ? "a" : "span", {});
      if (node) node.replaceWith(other);
      else holder.prepend(other);
      node = other;
    }
    setAttribute(node, "href", item.url);
    for (const name in more) setAttribute(node, name, more[name]);
    if (!tick(node)) setText(node, item.text);
  }

  // What counts by itself between two frames. A lease that has ended is not said to end in less than nothing.
  function tick(node) {
    const { at, until } = node.dataset;
    if (!at && !until) return false;
    const left = (Date.parse(until || at) - now()) / 1000;
    if (at) setText(node, fill(left > 1 ? words.ahead : words.ago, { time: length(Math.abs(left)) }));
    else setText(node, left > 0 ? length(Math.ceil(left)) : words.expired);
    if (until) node.parentNode.classList.toggle("pgq-over", left <= 0);
    return true;
  }

  // -- a frame --------------------------------------------------------------------------------------------------

  const isAsked = (button) => Object.values(button.fields || {}).includes(null);

  // What a cell is made of. Where this has changed the cell is made anew, otherwise its texts change.
  function shapeOf(cell) {
    const forms = (cell.buttons || []).map((button) => [button.url, ...Object.keys(button.fields || {})].join());
    return [cell.url ? "A" : "SPAN", (cell.fraction ?? null) === null ? "" : "PROGRESS", ...forms].join("|");
  }

  function shapeFound(node) {
    const forms = [...node.querySelectorAll("form")].map((form) => {
      const fields = form.querySelectorAll("input:not([name=csrfmiddlewaretoken])");
      return [form.getAttribute("action"), ...[...fields].map((field) => field.name)].join();
    });
    const progress = node.querySelector("progress") ? "PROGRESS" : "";
    return [node.firstElementChild?.tagName, progress, ...forms].join("|");
  }

  function makeForm(button) {
    const fields = Object.entries(button.fields || {}).map(([name, value]) =>
      value === null
        ? make("input", { type: "text", name, maxlength: 200, placeholder: words.reason, "aria-label": words.reason })
        : make("input", { type: "hidden", name, value })
    );
    const token = root.querySelector("[name=csrfmiddlewaretoken]").cloneNode();
    const press = make("button", { type: "submit", class: "button" }, button.text);
    const form = make("form", { method: "post", action: button.url }, token, ...fields, press);
    if (!isAsked(button)) return form;
    return make("details", { class: "pgq-ask" }, make("summary", { class: "button" }, `${button.text}…`), form);
  }

  function setCell(node, cell) {
    if (shapeFound(node) !== shapeOf(cell)) {
      // Nor what somebody has opened, and may have written into.
      if (node.contains(document.activeElement) || node.querySelector("details[open]")) return;
      const progress = (cell.fraction ?? null) === null ? [] : [" ", make("progress", { max: 1 })];
      const forms = (cell.buttons || []).flatMap((button) => [" ", makeForm(button)]);
      node.replaceChildren(make(cell.url ? "a" : "span", {}), ...progress, ...forms);
    }
    setAttribute(node, "class", cell.class);
    setLink(node, cell, { title: cell.title, "data-at": cell.at, "data-until": cell.until });
    const progress = node.querySelector("progress");
    if (progress) {
      setAttribute(progress, "value", cell.fraction);
      setAttribute(progress, "aria-label", cell.text);
    }
    const forms = node.querySelectorAll("form");
    (cell.buttons || []).forEach((button, index) => {
      setText(forms[index].querySelector("button"), button.text);
      for (const [name, value] of Object.entries(button.fields || {})) {
        if (value !== null) setAttribute(forms[index].elements[name], "value", value);
      }
    });
  }

  function setRow(node, row) {
    setAttribute(node, "class", row.class);
    row.cells.forEach((cell, index) => {
      const known = node.children[index] || node.appendChild(make(index ? "td" : "th", index ? {} : { scope: "row" }));
      setCell(known, cell);
    });
  }

  function setTable(table) {
    const section = root.querySelector(`[data-table="${table.key}"]`);
    if (!section) return;
    const [note, empty] = section.querySelectorAll(":scope > p");
    const body = section.querySelector("tbody");
    sync(body, table.rows, () => make("tr", {}), setRow, isHeld(body));
    section.querySelector(".pgq-wide").hidden = !body.children.length;
    note.hidden = !table.note;
    setText(note, table.note || "");
    empty.hidden = Boolean(body.children.length);
    setText(empty, table.empty || "");
  }

  function setList(section, items, paint) {
    section.hidden = !items || !items.length;
    sync(section.querySelector("ul, ol"), items || [], () => make("li", {}), paint);
  }

  function setFeed(lines) {
    const feed = part("feed");
    if (hovers.matches && feed.matches(":hover")) return; // read in peace
    sync(feed, lines, () => make("li", {}, make("span", {}), " ", make("time", {})), (node, line) => {
      setAttribute(node, "class", line.class);
      setLink(node, line);
      setAttribute(node.lastElementChild, "data-at", line.at);
      tick(node.lastElementChild);
    });
  }

  function setTile(node, tile) {
    const shown = node.firstElementChild;
    if ((shown.tagName === "A") !== Boolean(tile.url) && !isHeld(node)) shown.replaceWith(makeTile(tile).firstElementChild);
    const [name, text, note] = node.querySelectorAll(".pgq-name, strong, small");
    setText(name, tile.label);
    setText(text, tile.text);
    setText(note, tile.note || "");
    if (node.firstElementChild.tagName === "A") setAttribute(node.firstElementChild, "href", tile.url);
  }

  let announced = null;
  let announcedAt = -Infinity;
  function announce(text, essence) {
    // Numbers change all the time; what is wrong does not.
    if (announced === null) announced = essence;
    if (essence === announced || performance.now() < announcedAt + 15000) return;
    announced = essence;
    announcedAt = performance.now();
    setText(part("announcer"), text);
  }

  let takenAt = root.dataset.takenAt;
  function show(frame) {
    takenAt = frame.taken_at;
    setClock(takenAt);
    setList(part("problems"), frame.problems, (node, problem) => {
      setAttribute(node, "class", `pgq-${problem.severity}`);
      setLink(node, problem);
    });
    setList(part("checklist"), frame.checklist, (node, step) => {
      setAttribute(node, "class", step.done ? "pgq-done" : "");
      setLink(node, { text: step.text });
      const code = node.querySelector("code") || node.appendChild(make("code", {}));
      setText(code, step.code || "");
      code.hidden = !step.code;
    });
    sync(part("tiles"), frame.tiles, makeTile, setTile);
    frame.charts.forEach(setChart);
    frame.tables.forEach(setTable);
    setFeed(frame.feed);
    const texts = frame.problems.map((problem) => problem.text);
    announce(
      texts.length ? [fill(words.problems, { count: texts.length }), ...texts].join(" ") : words.well,
      texts.join().replace(/\d+/g, "")
    );
  }

  function makeTile(tile) {
    const parts = ["span", "strong", "small"].flatMap((tag, i) => [" ", make(tag, i ? {} : { class: "pgq-name" })]);
    return make("li", {}, make(tile.url ? "a" : "span", { class: "pgq-tile" }, ...parts));
  }

  // -- charts ---------------------------------------------------------------------------------------------------

  const charts = new Map(); // a figure's chart, and which of its points is read

  function setChart(chart) {
    const figure = root.querySelector(`.pgq-chart[data-key="${chart.key}"]`);
    if (!figure) return;
    const svg = figure.querySelector(".pgq-plot svg");
    const known = charts.get(figure) || prepare(figure, svg);
    known.chart = chart;
    known.count = Math.max(...chart.series.map((line) => line.points.length), 0);
    setAttribute(svg, "viewBox", chart.box);
    setAttribute(svg.querySelector(".pgq-grid"), "d", chart.grid);
    sync(svg.querySelector("g"), chart.series, () => make("path", {}), (node, line, index) => {
      setAttribute(node, "class", `pgq-line-${index + 1}`);
      setAttribute(node, "d", line.path);
    });
    sync(figure.querySelector(".pgq-legend"), chart.series, makeLegend, (node, line, index) => {
      setAttribute(node, "class", `pgq-line-${index + 1}`);
      setText(node.querySelector("span"), line.label);
      setText(node.querySelector("b"), line.text);
    });
    sync(figure.querySelector(".pgq-ticks"), chart.ticks.map((text) => ({ text })), () => make("span", {}),
      (node, tick) => setText(node, tick.text));
    setText(figure.querySelector(".pgq-ends span"), chart.begins);
    setText(figure.querySelector(".pgq-unseen"), chart.about);
    read(figure, known.at);
    if (figure.querySelector("details").open) tabulate(figure);
  }

  function makeLegend() {
    const sample = make("svg", { viewBox: "0 0 20 4", "aria-hidden": "true" }, make("path", { d: "M0 2h20" }));
    return make("li", {}, sample, " ", make("span", {}), " ", make("b", {}));
  }

  // A slider: what a screen reader leaves the arrow keys to, and reads out at each step.
  function prepare(figure, svg) {
    const known = { at: null };
    charts.set(figure, known);
    setAttribute(svg, "role", "slider");
    setAttribute(svg, "tabindex", "0");
    setAttribute(svg, "aria-valuemin", "0");
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      read(figure, Math.round(((event.clientX - box.left) / box.width) * (known.count - 1)));
    });
    svg.addEventListener("pointerleave", () => read(figure, null));
    svg.addEventListener("blur", () => read(figure, null));
    svg.addEventListener("focus", () => read(figure, known.at ?? known.count - 1));
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
      const at = known.at ?? known.count - 1;
      if (event.key in steps) read(figure, at + steps[event.key]);
      else if (event.key === "Home") read(figure, 0);
      else if (event.key === "End") read(figure, known.count - 1);
      else if (event.key === "Escape") read(figure, null);
      else return;
      event.preventDefault();
    });
    const details = figure.querySelector("details");
    details.hidden = false;
    details.addEventListener("toggle", () => {
      if (details.open) tabulate(figure);
      else details.querySelector("div")?.remove();
    });
    return known;
  }

  const value = (known, line, at) => line.points[at - (known.count - line.points.length)];

  function when(chart, known, at) {
    const seconds = (known.count - 1 - at) * chart.seconds_per_point;
    const days = chart.seconds_per_point >= 600 ? { weekday: "short", hour: "2-digit", minute: "2-digit" } : {};
    // The last one has only begun.
    return clock(Math.min(Date.parse(chart.ends_at) - seconds * 1000, Date.parse(takenAt)), days);
  }

  function read(figure, at) {
    const known = charts.get(figure);
    const { chart, count } = known;
    const svg = figure.querySelector(".pgq-plot svg");
    known.at = at = at === null || !count ? null : Math.min(Math.max(at, 0), count - 1);
    const place = at ?? Math.max(count - 1, 0);
    const said = chart.series.map((line) => `${line.label} ${written(value(known, line, place), chart.unit)}`);
    const text = [when(chart, known, place), ...said].join(" · ");
    setAttribute(svg, "aria-valuemax", Math.max(count - 1, 0));
    setAttribute(svg, "aria-valuenow", place);
    setAttribute(svg, "aria-valuetext", text);
    setAttribute(svg.querySelector(".pgq-cross"), "d", at === null ? "" : `M${at} 0V999`);
    setText(figure.querySelector("output"), at === null ? "" : text);
  }

  function tabulate(figure) {
    const known = charts.get(figure);
    const { chart, count } = known;
    const details = figure.querySelector("details");
    let body = details.querySelector("tbody");
    if (!body) {
      body = make("tbody", {});
      const label = `pgq-chart-${chart.key}`;
      const table = make("table", { "aria-labelledby": label }, make("thead", {}, make("tr", {})), body);
      details.append(make("div", { class: "pgq-wide", tabindex: 0, role: "region", "aria-labelledby": label }, table));
    }
    const setTexts = (tag) => (row, item) =>
      sync(row, item.texts.map((text) => ({ text })), () => make(tag, tag === "th" ? { scope: "col" } : {}),
        (node, cell) => setText(node, cell.text));
    setTexts("th")(details.querySelector("thead tr"), {
      texts: [words.moment, ...chart.series.map((line) => line.label)],
    });
    const rows = Array.from({ length: count }, (_, index) => {
      const at = count - 1 - index;
      const values = chart.series.map((line) => written(value(known, line, at), chart.unit));
      return { texts: [when(chart, known, at), ...values] };
    });
    sync(body, rows, () => make("tr", {}), setTexts("td"));
  }

  // -- how it comes ---------------------------------------------------------------------------------------------

  const SECONDS = Number(root.dataset.seconds) || 2;
  const MOST_SECONDS = 30;
  const PATIENCE_SECONDS = 10;
  const QUIET_SECONDS = 20; // a stream that says nothing for so long is asked no more
  const stored = `pgq-paused ${root.dataset.frameUrl}`;

  let running = false;
  let paused = recall();
  let over = false;
  let etag = "";
  let failures = 0;
  let trouble = null; // what is wrong, and since when
  let timer = 0;
  let request = null;
  let streaming = null;
  let heardAt = -Infinity;

  function recall() {
    try {
      return localStorage.getItem(stored) === "1";
    } catch {
      return false; // a browser that keeps nothing
    }
  }

  function setState() {
    const status = part("status");
    const state = over ? "over" : trouble ? "away" : paused ? "paused" : "live";
    status.hidden = over || Boolean(trouble);
    setAttribute(status, "data-state", state);
    setText(status, fill(paused ? words.paused : words.live, { time: clock(Date.parse(takenAt)) }));
    const pause = part("pause");
    pause.hidden = over;
    setText(pause, paused ? words.resume : words.pause);
    root.classList.toggle("pgq-stale", over || Boolean(trouble));
    const banner = part("banner");
    banner.hidden = !over && !trouble;
    if (over) {
      if (!banner.querySelector("a")) {
        banner.replaceChildren(words.login, " ", make("a", { href: location.href }, words.again));
      }
    } else if (trouble) {
      const age = length((now() - Date.parse(takenAt)) / 1000);
      setText(banner, fill(words[trouble.kind], { time: clock(trouble.since), age }));
    }
  }

  function receive(frame) {
    trouble = null;
    failures = 0;
    if (frame) show(frame);
    setState();
  }

  function fail(kind, since) {
    failures += 1;
    trouble = { kind, since: since || trouble?.since || now() };
    setState();
    announce(part("banner").textContent, kind);
  }

  function end() {
    over = true;
    stop();
    setState();
    announce(words.login, "over");
  }

  function plan(seconds) {
    clearTimeout(timer);
    if (running) timer = setTimeout(poll, seconds * 1000);
  }

  // Twice as long after each failure, and not all browsers at the same moment.
  const waiting = () => Math.min(SECONDS * 2 ** failures, MOST_SECONDS) * (0.75 + Math.random() / 4);

  async function poll() {
    clearTimeout(timer);
    request?.abort();
    const mine = (request = new AbortController());
    const limit = setTimeout(() => mine.abort(), PATIENCE_SECONDS * 1000);
    let status = 0;
    try {
      const answer = await fetch(root.dataset.frameUrl, {
        headers: etag ? { "If-None-Match": etag } : {},
        cache: "no-store",
        redirect: "manual",
        signal: mine.signal,
      });
      status = answer.type === "opaqueredirect" ? 302 : answer.status;
      const frame = status === 200 ? await answer.json() : null;
      if (mine !== request) return;
      if ([302, 401, 403].includes(status)) return end();
      if (status !== 200 && status !== 304) throw new Error(status);
      if (frame) etag = answer.headers.get("ETag") || "";
      receive(frame);
      plan(performance.now() - heardAt < QUIET_SECONDS * 1000 ? QUIET_SECONDS : SECONDS);
    } catch {
      if (mine !== request) return;
      fail(status === 503 ? "away" : "silent");
      plan(waiting());
    } finally {
      clearTimeout(limit);
    }
  }

  // One stream for all tabs of a browser: whoever holds the lock has it, and tells the others. A browser keeps six
  // connections to a server, so a stream for each tab would leave none for the site.
  function stream() {
    const url = root.dataset.streamUrl;
    if (!url || root.dataset.window !== "live" || !navigator.locks || !window.BroadcastChannel) return;
    const mine = (streaming = new AbortController());
    // Of those tabs that see the same: somebody else may have logged in since the first of them was opened.
    const name = `pgq ${url} ${root.dataset.viewer}`;
    const channel = new BroadcastChannel(name);
    const hear = ({ frame, since }) => {
      if (mine.signal.aborted) return;
      request?.abort();
      request = null;
      heardAt = performance.now();
      if (frame) receive(frame);
      else fail("away", Date.parse(since));
      plan(QUIET_SECONDS);
    };
    channel.onmessage = (event) => hear(event.data);
    mine.signal.addEventListener("abort", () => channel.close());
    const lead = () =>
      new Promise((release) => {
        let source = null;
        let again = 0;
        let heard = false;
        const open = () => {
          source = new EventSource(url);
          const tell = (message) => {
            heard = true;
            channel.postMessage(message);
            hear(message);
          };
          source.addEventListener("frame", (event) => tell({ frame: JSON.parse(event.data) }));
          source.addEventListener("away", (event) => tell(JSON.parse(event.data)));
          source.addEventListener("error", () => {
            plan(waiting());
            // It goes on by itself after an end, but never after a refusal. One that never said anything is no stream.
            if (source.readyState !== EventSource.CLOSED) return;
            if (heard) again = setTimeout(open, waiting() * 1000);
            else release();
          });
        };
        mine.signal.addEventListener("abort", () => {
          clearTimeout(again);
          source.close();
          release();
        });
        open();
      });
    navigator.locks.request(name, { signal: mine.signal }, lead).catch(() => {});
  }

  function start() {
    if (running || over || paused || document.hidden) return;
    running = true;
    poll();
    stream();
  }

  function stop() {
    running = false;
    clearTimeout(timer);
    request?.abort();
    request = null;
    streaming?.abort();
    streaming = null;
  }

  part("pause").addEventListener("click", () => {
    paused = !paused;
    try {
      localStorage.setItem(stored, paused ? "1" : "0");
    } catch {
      // Not remembered, then.
    }
    if (paused) stop();
    else start();
    setState();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", start);
  setInterval(() => {
    if (!running) return;
    if (trouble) setState();
    else root.querySelectorAll("[data-at], [data-until]").forEach(tick);
  }, 1000);

  setClock(takenAt);
  setState();
  // Paused or not, the charts need the numbers that the page has only drawn.
  if (paused) poll();
  else start();
})();
