/* What the page can do beyond being read: copy buttons, and a chart with zoom and hover in place of the static picture. */
(function () {
  "use strict";
  var say = document.getElementById("status");
  var holder = document.getElementById("data");
  var data = holder ? JSON.parse(holder.textContent) : null;

  // -- copy

  function copied(button, ok) {
    var words = data ? data.words : null;
    var old = button.textContent;
    button.textContent = ok ? "✓" : "…";
    if (words) say.textContent = ok ? words.copied : words.cannot_copy;
    setTimeout(function () { button.textContent = old; say.textContent = ""; }, 1600);
  }
  function copyByHand(text) {
    var area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.appendChild(area);
    area.select();
    var ok = false;
    try { ok = document.execCommand("copy"); } catch (e) { ok = false; }
    area.remove();
    return ok;
  }
  document.querySelectorAll("button.copy").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      var text = button.dataset.copy;
      if (navigator.clipboard && window.isSecureContext) {
        navigator.clipboard.writeText(text).then(function () { copied(button, true); }, function () { copied(button, copyByHand(text)); });
      } else copied(button, copyByHand(text));
    });
  });

  // -- on paper every quoted line is open

  var opened = [];
  addEventListener("beforeprint", function () {
    document.querySelectorAll("details.ref:not([open]), details.finding:not([open])").forEach(function (d) { d.open = true; opened.push(d); });
  });
  addEventListener("afterprint", function () { opened.splice(0).forEach(function (d) { d.open = false; }); });

  if (!data || typeof uPlot === "undefined") return;

  data.panels.forEach(function (panel) {
    panel.lines.forEach(function (line) {
      var at = 0;
      line.t = line.steps.map(function (step) { return (at += step); });
    });
  });

  // -- the chart: one uPlot for each panel, over one time axis

  var box = document.getElementById("chart"), panels = document.getElementById("panels"), picture = document.getElementById("picture");
  var plots = [], whole = [data.zero, data.zero + data.end], shown = whole.slice();
  var dashes = [[], [6, 4], [2, 3]];
  var wide = 68;

  function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function two(n) { return (n < 10 ? "0" : "") + n; }
  function clock(t, fine) {
    var d = new Date(Math.round(t * 1000));
    return two(d.getUTCHours()) + ":" + two(d.getUTCMinutes()) + (fine ? ":" + two(d.getUTCSeconds()) : "");
  }
  function day(t) { var d = new Date(t * 1000); return two(d.getUTCMonth() + 1) + "-" + two(d.getUTCDate()); }
  function stamp(t) { return (whole[1] - whole[0] > 86400 ? day(t) + " " : "") + clock(t, true); }
  var number = new Intl.NumberFormat(data.language, { maximumSignificantDigits: 4 });
  function value(v, unit) {
    if (v === null || v === undefined) return "–";
    if (unit === "ratio") return number.format(Math.round(v * 1000) / 10) + " %";
    if (unit === "s") return v !== 0 && Math.abs(v) < 1 ? number.format(v * 1000) + " ms" : number.format(v) + " s";
    if (unit === "bytes") return number.format(v / 1073741824) + " GiB";
    if (unit === "count") return number.format(v);
    return number.format(v) + " " + unit;
  }
  function range(panel, line, i) {
    if (line.high[i] === null || line.high[i] === undefined) return "–";
    if (!line.low || line.low[i] === line.high[i]) return value(line.high[i], panel.unit);
    return value(line.mean[i], panel.unit) + " (" + value(line.low[i], panel.unit) + " – " + value(line.high[i], panel.unit) + ")";
  }
  function times(u, splits, axis, space, step) {
    return splits.map(function (t) { return step >= 86400 ? day(t) : clock(t, step < 60); });
  }

  function shade(u) {
    var c = u.ctx, b = u.bbox;
    data.phases.forEach(function (p) {
      var left = Math.max(u.valToPos(data.zero + p.from, "x", true), b.left), right = Math.min(u.valToPos(data.zero + p.to, "x", true), b.left + b.width);
      if (right <= left) return;
      c.fillStyle = color("--" + p.kind);
      c.fillRect(left, b.top, right - left, b.height);
    });
  }
  function mark(first) {
    return function (u) {
      var c = u.ctx, b = u.bbox, r = devicePixelRatio || 1, groups = [];
      c.save();
      c.lineWidth = r;
      c.setLineDash([2 * r, 3 * r]);
      data.marks.forEach(function (m) {
        var x = Math.round(u.valToPos(data.zero + m.t, "x", true));
        if (x < b.left - 1 || x > b.left + b.width + 1) return;
        c.strokeStyle = color(m.bad ? "--bad" : "--soft");
        c.beginPath(); c.moveTo(x, b.top); c.lineTo(x, b.top + b.height); c.stroke();
        var last = groups[groups.length - 1];
        if (last && x - last.x < 34 * r) { last.to = m.n; last.bad = last.bad || m.bad; }
        else groups.push({ x: x, from: m.n, to: m.n, bad: m.bad });
      });
      c.setLineDash([]);
      c.font = "bold " + 11 * r + "px system-ui, sans-serif"; c.textAlign = "center"; c.textBaseline = "alphabetic";
      if (first) groups.forEach(function (g) { // numbers of events that coincide share a flag; a failure's has a point
        var label = g.from === g.to ? String(g.from) : g.from + "–" + g.to;
        var w = (4 + 3.5 * label.length) * r, top = b.top - 26 * r, x = Math.min(Math.max(g.x, w), c.canvas.width - w);
        c.fillStyle = color(g.bad ? "--bad" : "--soft");
        c.beginPath(); c.moveTo(x - w, top); c.lineTo(x + w, top); c.lineTo(x + w, top + 12 * r);
        if (g.bad) c.lineTo(x, top + 17 * r); else { c.lineTo(x + w, top + 15 * r); c.lineTo(x - w, top + 15 * r); }
        c.lineTo(x - w, top + 12 * r); c.closePath(); c.fill();
        c.fillStyle = color("--paper");
        c.fillText(label, x, top + 11.5 * r);
      });
      c.restore();
    };
  }

  function build(panel, index) {
    var first = index === 0, last = index === data.panels.length - 1;
    var tables = panel.lines.map(function (line) {
      var t = line.t.map(function (s) { return data.zero + s; });
      return [t, line.low || line.high, line.mean || line.high, line.high];
    });
    var joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    var series = [{}], bands = [];
    panel.lines.forEach(function (line, i) {
      var at = 1 + 3 * i, name = "--c" + (i % 8 + 1), ink = function () { return color(name); };
      series.push({ stroke: "transparent", points: { show: false } }, { stroke: function () { return color(name) + "66"; }, width: 1, points: { show: false } },
        { stroke: ink, width: 1.6, dash: dashes[i % 3], points: { show: line.t.length < 60, size: 4, stroke: ink, fill: ink } });
      if (line.low) bands.push({ series: [at + 2, at], fill: function () { return color(name) + "38"; } });
    });
    var node = document.createElement("div");
    node.className = "panel";
    var head = document.createElement("div");
    head.className = "panel-head";
    var name = document.createElement("span");
    name.className = "name"; name.textContent = panel.title;
    head.appendChild(name);
    var values = panel.lines.map(function (line, i) {
      var v = document.createElement("span");
      v.className = "value";
      v.style.color = "var(--c" + (i % 8 + 1) + ")";
      head.appendChild(v);
      return v;
    });
    var at = document.createElement("span");
    at.className = "at";
    head.appendChild(at);
    node.appendChild(head);
    var area = document.createElement("div");
    area.setAttribute("role", "img");
    area.setAttribute("aria-label", panel.title + ": " + panel.lines.map(function (l) { return l.label; }).join(", "));
    node.appendChild(area);
    panels.appendChild(node);
    function rest() {
      panel.lines.forEach(function (line, i) { values[i].textContent = line.label === panel.title ? "" : ["━", "╍", "┅"][i % 3] + " " + line.label; });
      at.textContent = "";
    }
    rest();
    var ink = function () { return color("--soft"); }, grid = { stroke: function () { return color("--rule"); }, width: 1 };
    var plot = new uPlot({
      width: Math.max(panels.clientWidth, 200), height: (last ? 128 : 100) + (first ? 28 : 0),
      padding: [first && data.marks.length ? 30 : 6, 12, last ? 0 : 4, 0],
      tzDate: function (t) { return uPlot.tzDate(new Date(t * 1e3), "Etc/UTC"); },
      legend: { show: false },
      cursor: { sync: { key: "timeline" }, drag: { x: true, y: false, setScale: false }, y: false, points: { size: 6 }, bind: { dblclick: function () { return function () { zoom(whole); }; } } },
      scales: { x: { time: true, range: function () { return shown; } }, y: { range: function () { return [0, panel.top]; } } },
      axes: [
        { show: last, stroke: ink, grid: grid, ticks: { show: false }, size: 28, values: times, font: "12px system-ui, sans-serif" },
        { stroke: ink, grid: grid, ticks: { show: false }, size: wide, font: "12px system-ui, sans-serif", space: 32,
          splits: function () { return [0, panel.top / 2, panel.top]; },
          values: function (u, splits) { return splits.map(function (v) { return value(v, panel.unit).replace(" tokens/s", ""); }); } }
      ],
      series: series, bands: bands,
      hooks: {
        drawClear: [shade], draw: [mark(first)],
        setSelect: [function (u) {
          if (u.select.width < 4) return;
          zoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        setCursor: [function (u) {
          if (u.cursor.left === null || u.cursor.left < 0) { rest(); return; }
          var t = u.posToVal(u.cursor.left, "x");
          panel.lines.forEach(function (line, i) { values[i].textContent = (line.label === panel.title ? "" : line.label + " ") + range(panel, line, near(line.t, t - data.zero)); });
          if (first) at.textContent = stamp(t);
        }]
      }
    }, joined, area);
    plots.push(plot);
  }
  function near(list, t) {
    var low = 0, high = list.length - 1;
    while (low < high) { var mid = (low + high) >> 1; if (list[mid] < t) low = mid + 1; else high = mid; }
    return low > 0 && t - list[low - 1] < list[low] - t ? low - 1 : low;
  }
  function zoom(to) {
    var size = Math.min(Math.max(to[1] - to[0], Math.min(2, data.end)), data.end);
    var from = Math.min(Math.max(to[0], whole[0]), whole[1] - size);
    shown = [from, from + size];
    plots.forEach(function (p) { p.setScale("x", { min: shown[0], max: shown[1] }); });
    say.textContent = data.words.shown.replace("{span}", stamp(shown[0]) + " → " + stamp(shown[1]));
  }
  function act(what) {
    var size = shown[1] - shown[0], middle = (shown[0] + shown[1]) / 2;
    if (what === "in") zoom([middle - size / 4, middle + size / 4]);
    if (what === "out") zoom([middle - size, middle + size]);
    if (what === "left") zoom([shown[0] - size / 2, shown[1] - size / 2]);
    if (what === "right") zoom([shown[0] + size / 2, shown[1] + size / 2]);
    if (what === "all") zoom(whole);
  }
  try {
    box.hidden = false;
    data.panels.forEach(build);
    picture.hidden = true;
  } catch (error) {
    box.hidden = true; // the picture says the same
    picture.hidden = false;
    return;
  }
  box.querySelectorAll("[data-do]").forEach(function (button) {
    button.addEventListener("click", function () { act(button.dataset.do); });
  });
  box.addEventListener("keydown", function (event) {
    var what = { "+": "in", "=": "in", "-": "out", "ArrowLeft": "left", "ArrowRight": "right", "0": "all", "Escape": "all" }[event.key];
    if (what && !event.ctrlKey && !event.metaKey && !event.altKey) { act(what); event.preventDefault(); }
  });
  var redraw = function () { plots.forEach(function (p) { p.redraw(false, true); }); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(function () {
    var w = panels.clientWidth;
    plots.forEach(function (p) { if (w > 0 && p.width !== w) p.setSize({ width: w, height: p.height }); });
  }).observe(panels);
  document.documentElement.classList.add("charted");
})();
