"use strict";
(function () {
  const root = document.documentElement, byId = (id) => document.getElementById(id);

  const themes = ["system", "light", "dark"], button = byId("theme");
  const remembered = () => { try { return localStorage.getItem("glyph-theme"); } catch { return null; } };
  function showTheme(name) {
    if (name === "system") root.removeAttribute("data-theme"); else root.dataset.theme = name;
    button.textContent = "Theme: " + name;
    try { localStorage.setItem("glyph-theme", name); } catch { /* a page of a file may not store anything */ }
  }
  let theme = themes.includes(remembered()) ? remembered() : "system";
  button.hidden = false;
  showTheme(theme);
  button.addEventListener("click", () => showTheme(theme = themes[(themes.indexOf(theme) + 1) % themes.length]));

  const LONG_CONTEXT = 150;
  const ROLES = { r: "trained by RL", m: "masked (label)", e: "label trained by cross-entropy", u: "sampled, not trained", c: "context, not trained" };
  const exhibits = JSON.parse(byId("exhibits").textContent);
  const viewer = byId("viewer"), choice = byId("choice"), tokens = byId("tokens");
  let at = 0;

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function token(text, role) {
    const shown = role === "c" || role === "s" ? text : text.replaceAll("\n", "↵\n");
    return element("bdi", "t-" + role, shown);
  }

  function branch(target) {
    const chip = element("span", "branch");
    chip.title = "verified-label sample: " + target.label;
    chip.append("⤷ ", ...target.tokens.map(([text, trained]) => token(text, trained ? "e" : "s")));
    return chip;
  }

  function branches(exhibit) {
    const found = new Map();
    for (const target of exhibit.targets) found.set(target.at, [...(found.get(target.at) || []), branch(target)]);
    return found;
  }

  function drawTokens(exhibit) {
    const leaving = branches(exhibit), count = exhibit.tokens.length;
    let start = 0;
    while (start < count) {
      let end = start;
      while (end < count && exhibit.roles[end] === exhibit.roles[start] && (end === start || !leaving.has(end))) end += 1;
      tokens.append(...(leaving.get(start) || []));
      const pieces = [];
      for (let i = start; i < end; i += 1) pieces.push(token(exhibit.tokens[i], exhibit.roles[i]));
      if (exhibit.roles[start] === "c" && end - start > LONG_CONTEXT) {
        const folded = element("details");
        folded.append(element("summary", "", "context, " + (end - start) + " tokens"), ...pieces);
        tokens.append(folded, "\n");
      } else tokens.append(...pieces);
      start = end;
    }
    tokens.append(...(leaving.get(count) || []));
  }

  function counts(exhibit) {
    const found = { r: 0, m: 0, e: 0, u: 0, c: 0 };
    for (const role of exhibit.roles) found[role] += 1;
    for (const target of exhibit.targets) for (const [, trained] of target.tokens) found.e += trained ? 1 : 0;
    return found;
  }

  function drawRoles(exhibit) {
    for (const [role, number] of Object.entries(counts(exhibit))) {
      const item = element("li");
      item.dataset.role = role;
      item.append(element("span", "t-" + role, "abc"), ROLES[role] + ": " + number);
      byId("roles").append(item);
    }
  }

  function show(index) {
    at = (index + exhibits.length) % exhibits.length;
    const exhibit = exhibits[at], advantage = exhibit.advantage;
    choice.value = String(at);
    tokens.replaceChildren();
    byId("roles").replaceChildren();
    tokens.scrollTop = 0;
    let heading = (at + 1) + " of " + exhibits.length + " · " + exhibit.place + " · " + exhibit.title;
    viewer.classList.toggle("up", advantage > 0);
    viewer.classList.toggle("down", advantage < 0);
    if (exhibit.tokens) {
      const sign = advantage > 0 ? "+" : "";
      const none = advantage === null || advantage === undefined;
      heading += " · advantage " + (none ? "–" : sign + advantage.toFixed(3));
      drawRoles(exhibit);
      drawTokens(exhibit);
    } else tokens.textContent = exhibit.text;
    byId("heading").textContent = heading;
  }

  function fill() {
    let group = null;
    exhibits.forEach((exhibit, index) => {
      if (!group || group.label !== exhibit.place) {
        group = element("optgroup");
        group.label = exhibit.place;
        choice.append(group);
      }
      const option = element("option", "", exhibit.title);
      option.value = String(index);
      group.append(option);
    });
  }

  if (!exhibits.length) { byId("no-rollouts").hidden = false; return; }
  viewer.hidden = false;
  fill();
  show(Math.max(0, exhibits.findIndex((exhibit) => exhibit.targets && exhibit.targets.length)));
  choice.addEventListener("change", () => show(Number(choice.value)));
  byId("previous").addEventListener("click", () => show(at - 1));
  byId("next").addEventListener("click", () => show(at + 1));
  viewer.addEventListener("keydown", (event) => {
    if (event.target === choice || event.ctrlKey || event.altKey || event.metaKey) return;
    const move = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: exhibits.length - 1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(move);
  });
})();
