/* Shows one scope (worker, basis, stack) at a time, keeps the choice in the URL's hash, draws its
   charts for the ground and the width at hand, and gives out their data. All text from data is set
   as text, never as markup. */
"use strict";
(() => {
  const store = JSON.parse(document.getElementById("data").textContent);
  const scopes = store.scopes;
  const NARROW_PX = 560;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const filters = {
    hardware: document.getElementById("filter-hardware"),
    worker: document.getElementById("filter-worker"),
    stack: document.getElementById("filter-stack"),
  };
  const drawn = new Map(); // plot element -> {stored, narrow}
  let current = null;
  let experiment = null;

  /* ---- the hash ---- */
  const read = () => new URLSearchParams(window.location.hash.slice(1));

  function write(changes, replace) {
    const values = read();
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) values.delete(name);
      else values.set(name, value);
    }
    const hash = "#" + values.toString();
    if (hash === window.location.hash) return;
    history[replace ? "replaceState" : "pushState"](null, "", hash);
  }

  const first = (test) => scopes.find(test);

  function chosen(values) {
    const byExperiment = store.experiments[values.get("experiment")];
    if (byExperiment) return first((s) => s.id === byExperiment.scope);
    const run = values.get("run");
    const byRun = run && first((s) => s.runs.includes(run));
    if (byRun) return byRun;
    const [hardware, worker, stack] = ["hardware", "worker", "stack"].map((n) => values.get(n));
    // The most exact match there is: an old link still lands near what it meant.
    return (
      first((s) => s.stack === stack && s.worker === worker) ||
      first((s) => s.stack === stack) ||
      first((s) => s.hardware === hardware && s.worker === worker) ||
      first((s) => s.hardware === hardware) ||
      first((s) => s.worker === worker) ||
      scopes[0]
    );
  }

  /* ---- filters ---- */
  function fill(select, options, value) {
    select.replaceChildren(
      ...[...new Map(options).entries()].map(([key, label]) => {
        const option = new Option(label, key, false, key === value);
        option.title = label;
        return option;
      })
    );
    select.disabled = select.options.length < 2;
  }

  function showFilters() {
    const here = scopes.filter((s) => s.hardware === current.hardware);
    fill(filters.hardware, scopes.map((s) => [s.hardware, s.hardwareLabel]), current.hardware);
    fill(filters.worker, here.map((s) => [s.worker, s.workerLabel]), current.worker);
    fill(
      filters.stack,
      here.filter((s) => s.worker === current.worker).map((s) => [s.stack, s.stackLabel]),
      current.stack
    );
  }

  function choose(scope) {
    write({ hardware: scope.hardware, worker: scope.worker, stack: scope.stack,
            experiment: null, run: null, section: null });
    apply();
  }
  filters.hardware.addEventListener("change", () => {
    const hardware = filters.hardware.value;
    choose(
      first((s) => s.hardware === hardware && s.worker === current.worker) ||
      first((s) => s.hardware === hardware)
    );
  });
  filters.worker.addEventListener("change", () =>
    choose(first((s) => s.hardware === current.hardware && s.worker === filters.worker.value)));
  filters.stack.addEventListener("change", () =>
    choose(first((s) => s.stack === filters.stack.value && s.worker === current.worker)));

  /* ---- charts ---- */
  function recoloured(value, key) {
    if (typeof value === "string") return /color/i.test(key) && store.dark[value] || value;
    if (Array.isArray(value)) return value.map((item) => recoloured(item, key));
    if (value && typeof value === "object") {
      for (const name of Object.keys(value)) value[name] = recoloured(value[name], name);
    }
    return value;
  }

  /* A row's name may take several lines; what is said of it is the last one. Above the row both
     go on one line if they fit. */
  const LINE_LETTERS = 44;
  function aboveRow(text) {
    const lines = text.split("<br>");
    const said = lines.pop();
    const name = lines.join(" ");
    return name.length + said.length < LINE_LETTERS ? `${name} \u00b7 ${said}` : `${name}<br>${said}`;
  }

  /* On a narrow screen a row's label stands above the row instead of beside it. */
  function narrowed(figure) {
    const rows = figure.layout.meta.rows;
    const axis = figure.layout.yaxis;
    const labels = axis.ticktext;
    figure.layout.height = labels.length * rows.px + rows.around_px;
    axis.showticklabels = false;
    axis.automargin = false;
    axis.range = [labels.length - 0.5, -0.5 - rows.lead];
    figure.layout.margin.l = 10;
    figure.layout.annotations = (figure.layout.annotations || []).concat(
      labels.map((text, index) => ({
        text: aboveRow(text), showarrow: false, align: "left",
        xref: "paper", x: 0, xanchor: "left", yref: "y", y: index, yanchor: "bottom",
        yshift: rows.shift, font: { size: 12 },
      }))
    );
    return figure;
  }

  /* A chart that scrolls starts at its right end, so its panels' titles go there too. */
  function rightTitled(figure) {
    for (const title of figure.layout.annotations) {
      if (title.xref === "paper" && title.x === 0) { title.x = 1; title.xanchor = "right"; }
    }
    return figure;
  }

  function draw(plot, stored) {
    let figure = structuredClone(stored.figure);
    figure.layout = { ...structuredClone(store.layout), ...figure.layout };
    const frame = plot.parentElement;
    const narrow = frame.clientWidth < NARROW_PX;
    const meta = figure.layout.meta || {};
    if (narrow && meta.rows) figure = narrowed(figure);
    if (meta.newest_at_right && plot.clientWidth > frame.clientWidth) figure = rightTitled(figure);
    if (dark.matches) figure = recoloured(figure, "");
    plot.style.height = figure.layout.height + "px";
    drawn.set(plot, { stored, narrow });
    return Plotly.react(plot, figure.data, figure.layout, {
      responsive: true, displayModeBar: false, doubleClick: false, scrollZoom: false,
    });
  }

  function redraw(all) {
    for (const [plot, { stored, narrow }] of drawn) {
      const visible = plot.clientWidth > 0;
      const changed = narrow !== plot.parentElement.clientWidth < NARROW_PX;
      if (visible && (all || changed)) draw(plot, stored);
      else if (all) drawn.delete(plot);
    }
  }
  dark.addEventListener("change", () => redraw(true));
  let resizing = 0;
  window.addEventListener("resize", () => {
    window.clearTimeout(resizing);
    resizing = window.setTimeout(() => redraw(false), 120);
  });

  /* ---- data of charts and tables ---- */
  const storedOf = (figure) =>
    figure.hasAttribute("data-timeline")
      ? store.experiments[experiment] && store.experiments[experiment].chart
      : store.charts[figure.dataset.chart];

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  const shown = (cell) => (cell === null ? "\u2014" : String(cell));

  function table({ columns, rows }) {
    const made = element("table", undefined, "table");
    const head = made.createTHead().insertRow();
    head.append(...columns.map((name) => element("th", name)));
    const body = made.createTBody();
    for (const row of rows) {
      body.insertRow().append(...row.map((cell) =>
        element("td", shown(cell), typeof cell === "number" ? "num" : "")));
    }
    return made;
  }

  /* A spreadsheet runs a cell that starts like a formula, so such text gets a leading quote. */
  function csvCell(cell) {
    if (cell === null) return "";
    let text = String(cell);
    if (typeof cell === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  }

  function download(name, { columns, rows }) {
    const text = [columns, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n");
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([text + "\r\n"], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function act(button) {
    const held = button.dataset.table;
    if (held) {
      download("resilience-" + held.replace(/^s\d+-/, "") + "-" + current.stack, store.tables[held]);
      return;
    }
    const figure = button.closest("figure");
    const stored = storedOf(figure);
    if (!stored) return;
    if (button.dataset.act === "csv") {
      const name = figure.dataset.chart
        ? figure.dataset.chart.replace(/^s\d+-/, "") : "experiment";
      download("resilience-" + name + "-" + current.stack, stored);
      return;
    }
    const rows = figure.querySelector(".rows");
    rows.hidden = !rows.hidden;
    rows.replaceChildren(...(rows.hidden ? [] : [table(stored)]));
    button.setAttribute("aria-expanded", String(!rows.hidden));
  }

  /* ---- one experiment ---- */
  function swatch(role, symbol) {
    const marks = { circle: "\u25cf", square: "\u25a0", diamond: "\u25c6", "triangle-up": "\u25b2",
                    x: "\u2715", "circle-open": "\u25cb" };
    const made = element("span", marks[symbol] || "\u25cf");
    made.style.color = "var(--" + role + ")";
    made.setAttribute("aria-hidden", "true");
    return made;
  }

  function showExperiment(id) {
    const scope = document.getElementById(current.id);
    const card = scope.querySelector("[data-name=experiment]");
    if (!card) { experiment = null; return; }
    const select = card.querySelector("select");
    const known = [...select.options].some((option) => option.value === id);
    experiment = known ? id : select.value;
    select.value = experiment;
    const item = store.experiments[experiment];
    const figure = card.querySelector("[data-timeline]");
    const plot = figure.querySelector(".plot");
    const rows = figure.querySelector(".rows");
    rows.hidden = true;
    figure.querySelector("[data-act=table]").setAttribute("aria-expanded", "false");
    figure.querySelector("[data-none]").hidden = item.chart !== null;
    figure.querySelector(".tools").hidden = item.chart === null;
    plot.hidden = item.chart === null;
    card.querySelector("[data-facts]").replaceChildren(...item.facts.map(([term, value]) => {
      const fact = element("div", undefined, value.length > 60 ? "long" : "");
      fact.append(element("dt", term), element("dd", value));
      return fact;
    }));
    figure.querySelector(".legend").replaceChildren(...item.legend.map(([label, role, symbol]) => {
      const entry = element("li");
      entry.append(swatch(role, symbol), label);
      return entry;
    }));
    if (item.chart) draw(plot, item.chart);
  }

  /* ---- show what the hash says ---- */
  function reveal(target) {
    if (!target) return;
    for (let up = target; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
    target.scrollIntoView();
  }

  function goTo(section) {
    const scope = document.getElementById(current.id);
    reveal(scope.querySelector(`[data-name="${CSS.escape(section)}"]`) ||
           document.querySelector(`main > [data-name="${CSS.escape(section)}"]`));
  }

  function apply() {
    const values = read();
    current = chosen(values);
    for (const scope of scopes) document.getElementById(scope.id).hidden = scope !== current;
    showFilters();
    const scope = document.getElementById(current.id);
    for (const figure of scope.querySelectorAll("figure[data-chart]")) {
      const plot = figure.querySelector(".plot");
      if (!drawn.has(plot)) draw(plot, store.charts[figure.dataset.chart]);
    }
    redraw(false);
    showExperiment(values.get("experiment"));
    for (const row of document.querySelectorAll("tr.target")) row.classList.remove("target");
    const run = values.get("run");
    const line = run && scope.querySelector(`tr[data-run="${CSS.escape(run)}"]`);
    if (line) { line.classList.add("target"); reveal(line); }
    else if (values.has("experiment")) goTo("experiment");
    else if (values.has("section")) goTo(values.get("section"));
    for (const [plot, { stored }] of drawn) {
      const meta = stored.figure.layout.meta || {};
      if (meta.newest_at_right) plot.parentElement.scrollLeft = plot.parentElement.scrollWidth;
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button) { act(button); return; }
    const link = event.target.closest("a[data-section]");
    if (link) {
      event.preventDefault();
      write({ section: link.dataset.section, experiment: null, run: null }, true);
      goTo(link.dataset.section);
    }
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("select[data-experiments]")) return;
    write({ hardware: current.hardware, worker: current.worker, stack: current.stack,
            experiment: event.target.value, run: null, section: null }, true);
    showExperiment(event.target.value);
  });
  window.addEventListener("popstate", apply);
  apply();
})();
