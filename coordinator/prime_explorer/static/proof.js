// Checks the log in the reader's own browser: SHA-256 and Ed25519 of WebCrypto over the log's static files.
// Hashing and proofs are those of RFC 9162, the files those of c2sp.org/tlog-tiles; see docs/protocol/log.md.
(() => {
  "use strict";
  const HASH_BYTES = 32, TILE_HASHES = 256, TILE_HEIGHT = 8;
  const LEAF = Uint8Array.of(0), NODE = Uint8Array.of(1);

  class Unproven extends Error {}

  // --- Bytes ---------------------------------------------------------------------------------------------------------

  const join = (...parts) => {
    const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
    let at = 0;
    for (const part of parts) { whole.set(part, at); at += part.length; }
    return whole;
  };
  const hash = async (...parts) => new Uint8Array(await crypto.subtle.digest("SHA-256", join(...parts)));
  const toHex = (bytes) => "0x" + [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const isSame = (left, right) => left.length === right.length && left.every((byte, place) => byte === right[place]);

  const get = async (path) => {
    const answer = await fetch(`/log/${path}`, { cache: path === "checkpoint" ? "no-store" : "default" });
    if (!answer.ok) throw new Unproven(`/log/${path} is not there (${answer.status})`);
    return new Uint8Array(await answer.arrayBuffer());
  };

  // --- The tree ------------------------------------------------------------------------------------------------------

  const nodeHash = (left, right) => hash(NODE, left, right);

  const foldPeaks = async (peaks) => {
    let root = peaks.at(-1);
    for (const peak of peaks.slice(0, -1).reverse()) root = await nodeHash(peak, root);
    return root;
  };

  /** Perfect subtrees, largest first, whose fold is the hash over leaves start to end - 1. */
  const subtreeNodes = (start, end) => {
    const nodes = [];
    while (start < end) {
      let level = 0;
      while (2 ** (level + 1) <= end - start) level += 1;
      nodes.push([level, start / 2 ** level]);
      start += 2 ** level;
    }
    return nodes;
  };

  /** Leaves under the left child: the largest power of two below the width. */
  const split = (width) => {
    let half = 1;
    while (2 * half < width) half *= 2;
    return half;
  };

  const inclusionNodes = (index, size) => {
    let start = 0, end = size;
    const siblings = [];
    while (end - start > 1) {
      const middle = start + split(end - start);
      if (index < middle) { siblings.push([middle, end]); end = middle; }
      else { siblings.push([start, middle]); start = middle; }
    }
    return siblings.reverse().map((sibling) => subtreeNodes(...sibling));
  };

  const consistencyNodes = (oldSize, newSize) => {
    if (oldSize === 0) return [];
    let start = 0, end = newSize;
    const siblings = [];
    while (oldSize !== end) {
      const middle = start + split(end - start);
      if (oldSize <= middle) { siblings.push([middle, end]); end = middle; }
      else { siblings.push([start, middle]); start = middle; }
    }
    if (start !== 0) siblings.push([start, end]);
    return siblings.reverse().map((sibling) => subtreeNodes(...sibling));
  };

  const half = (number) => Math.floor(number / 2);

  const verifyInclusion = async (leaf, proof, index, size, root) => {
    let low = index, high = size - 1, found = leaf;
    for (const sibling of proof) {
      if (high === 0) throw new Unproven("the inclusion proof has too many hashes");
      if (low % 2 || low === high) {
        found = await nodeHash(sibling, found);
        while (low % 2 === 0 && low) { low = half(low); high = half(high); }
      } else {
        found = await nodeHash(found, sibling);
      }
      low = half(low); high = half(high);
    }
    if (high !== 0) throw new Unproven("the inclusion proof has too few hashes");
    if (!isSame(found, root)) throw new Unproven(`the proof leads to root ${toHex(found)}, the head says ${toHex(root)}`);
  };

  const verifyConsistency = async (proof, oldSize, oldRoot, newSize, newRoot) => {
    if (oldSize === newSize) {
      if (!isSame(oldRoot, newRoot)) throw new Unproven("two heads of one size have different roots");
      return;
    }
    if (oldSize === 0) return;
    let low = oldSize - 1, high = newSize - 1;
    while (low % 2) { low = half(low); high = half(high); }
    const path = low === 0 ? [oldRoot, ...proof] : [...proof];
    let oldFound = path[0], newFound = path[0];
    for (const sibling of path.slice(1)) {
      if (high === 0) throw new Unproven("the consistency proof has too many hashes");
      if (low % 2 || low === high) {
        oldFound = await nodeHash(sibling, oldFound);
        newFound = await nodeHash(sibling, newFound);
        while (low % 2 === 0 && low) { low = half(low); high = half(high); }
      } else {
        newFound = await nodeHash(newFound, sibling);
      }
      low = half(low); high = half(high);
    }
    if (high !== 0) throw new Unproven("the consistency proof has too few hashes");
    if (!isSame(oldFound, oldRoot)) throw new Unproven(`the proof leads to the older root ${toHex(oldFound)}, not ${toHex(oldRoot)}`);
    if (!isSame(newFound, newRoot)) throw new Unproven(`the proof leads to the newer root ${toHex(newFound)}, not ${toHex(newRoot)}`);
  };

  // --- The files -----------------------------------------------------------------------------------------------------

  const place = (index, width) => {
    const groups = [String(index % 1000).padStart(3, "0")];
    while ((index = Math.floor(index / 1000))) groups.unshift("x" + String(index % 1000).padStart(3, "0"));
    return groups.join("/") + (width < TILE_HASHES ? `.p/${width}` : "");
  };

  /** A partial file goes when its full one is there, which begins with the same. */
  const getPart = async (kind, index, width) => {
    try {
      return await get(`tile/${kind}/${place(index, width)}`);
    } catch (error) {
      if (width === TILE_HASHES || !(error instanceof Unproven)) throw error;
      return get(`tile/${kind}/${place(index, TILE_HASHES)}`);
    }
  };

  class Tiles {
    constructor(size) { this.size = size; this.known = new Map(); }

    tile(level, index) {
      const name = `${level}/${index}`;
      if (!this.known.has(name)) this.known.set(name, this.read(level, index));
      return this.known.get(name);
    }

    async read(level, index) {
      const width = Math.min(TILE_HASHES, Math.floor(this.size / TILE_HASHES ** level) - index * TILE_HASHES);
      const raw = await getPart(level, index, width);
      if (raw.length < width * HASH_BYTES) throw new Unproven(`tile ${level}/${index} is cut short`);
      return raw;
    }

    async node(level, index) {
      const height = level % TILE_HEIGHT, first = index * 2 ** height;
      const tileIndex = Math.floor(first / TILE_HASHES);
      const raw = await this.tile(Math.floor(level / TILE_HEIGHT), tileIndex);
      const start = (first - tileIndex * TILE_HASHES) * HASH_BYTES;
      let row = Array.from({ length: 2 ** height }, (_, at) => raw.slice(start + at * HASH_BYTES, start + (at + 1) * HASH_BYTES));
      while (row.length > 1) {
        row = await Promise.all(row.filter((_, at) => at % 2 === 0).map((left, at) => nodeHash(left, row[2 * at + 1])));
      }
      return row[0];
    }

    nodes(list) { return Promise.all(list.map(([level, index]) => this.node(level, index))); }
    async root(size) { return foldPeaks(await this.nodes(subtreeNodes(0, size))); }
    proof(parts) { return Promise.all(parts.map(async (part) => foldPeaks(await this.nodes(part)))); }
  }

  const readEntry = async (index, size) => {
    const bundle = Math.floor(index / TILE_HASHES);
    const raw = await getPart("entries", bundle, Math.min(TILE_HASHES, size - bundle * TILE_HASHES));
    let at = 0;
    for (let number = bundle * TILE_HASHES; at + 2 <= raw.length; number += 1) {
      const start = at + 2, end = start + raw[at] * 256 + raw[at + 1];
      if (number === index) return raw.slice(start, end);
      at = end;
    }
    throw new Unproven(`the bundle of entry ${index} is cut short`);
  };

  // --- The head ------------------------------------------------------------------------------------------------------

  const readHead = async () => {
    const note = new TextDecoder().decode(await get("checkpoint"));
    const gap = note.lastIndexOf("\n\n");
    const text = note.slice(0, gap + 1), [origin, size, root] = text.split("\n");
    if (gap < 0 || !/^[0-9]{1,15}$/.test(size)) throw new Unproven("/log/checkpoint is no tree head");
    return { note, text, origin, size: Number(size), root: fromBase64(root), signatures: note.slice(gap + 2).split("\n").filter(Boolean) };
  };

  /** True, false, or undefined where this browser has no Ed25519. */
  const isSigned = async (head, key) => {
    const [name, id] = key.split("+"), encoded = key.slice(name.length + id.length + 2);  // base64 has pluses, too
    const line = head.signatures.find((each) => each.startsWith(`— ${head.origin} `) &&
      toHex(fromBase64(each.split(" ").at(-1)).slice(0, 4)) === `0x${id}`);
    if (!line) return false;
    try {
      const verifier = await crypto.subtle.importKey("raw", fromBase64(encoded).slice(1), { name: "Ed25519" }, false, ["verify"]);
      return await crypto.subtle.verify("Ed25519", verifier, fromBase64(line.split(" ").at(-1)).slice(4), new TextEncoder().encode(head.text));
    } catch (error) {
      if (error.name === "NotSupportedError" || error.name === "SyntaxError") return undefined;
      throw error;
    }
  };

  // --- What the reader sees ------------------------------------------------------------------------------------------

  class Panel {
    constructor(section) {
      this.verdict = section.querySelector(".verdict");
      this.list = section.querySelector(".checks");
      this.section = section;
    }

    begin() { this.list.replaceChildren(); this.say("working", "Checking…"); }

    say(state, text) {
      this.section.dataset.state = state;
      this.verdict.textContent = text;
      if (state === "bad") this.verdict.setAttribute("role", "alert");
    }

    note(text, mark = "✓") {
      const item = document.createElement("li");
      item.textContent = `${mark} ${text}`;
      this.list.append(item);
    }
  }

  /** The entry that rotated the key by which the head is signed; undefined where no earlier key signed it. */
  const findRotation = async (head, rotated) => {
    for (const { key, index } of rotated) if (head.size > index && await isSigned(head, key)) return index;
    return undefined;
  };

  const checkHead = async (panel, { key, rotated }) => {
    const head = await readHead();
    const signed = await isSigned(head, key);
    const entry = signed === false ? await findRotation(head, rotated) : undefined;
    if (entry !== undefined) throw new Unproven(`the head is signed with the key that was rotated at entry ${entry}`);
    if (signed === false) throw new Unproven("the head is not signed by the log's key; if this page is old, load it again");
    if (signed) panel.note(`The newest head, ${head.size.toLocaleString()} entries, is signed by ${key.split("+")[0]}.`);
    else panel.note("This browser cannot check Ed25519 signatures; the head's signature is not checked here.", "–");
    return head;
  };

  const checkInclusion = async (panel, { index, leaf, keys }) => {
    const head = await checkHead(panel, keys);
    if (index >= head.size) {
      panel.say("open", `Entry ${index.toLocaleString()} is newer than the newest signed head. A head follows within seconds: load the page again.`);
      return;
    }
    const entry = await readEntry(index, head.size);
    const found = await hash(LEAF, entry);
    if (toHex(found) !== leaf) throw new Unproven(`the entry's bytes hash to ${toHex(found)}, this page says ${leaf}`);
    panel.note(`The entry's ${entry.length.toLocaleString()} bytes hash to ${leaf}.`);
    const tiles = new Tiles(head.size);
    if (!isSame(await tiles.root(head.size), head.root)) throw new Unproven("the tiles do not lead to the root of the signed head");
    const proof = await tiles.proof(inclusionNodes(index, head.size));
    await verifyInclusion(found, proof, index, head.size, head.root);
    panel.note(`${proof.length} hashes, from ${tiles.known.size} tiles, lead from it to the signed root ${toHex(head.root)}.`);
    panel.say("good", `Yes. Your browser has just checked that entry ${index.toLocaleString()} is in the signed log of ${head.size.toLocaleString()} entries.`);
  };

  const checkConsistency = async (panel, { oldSize, oldRoot, newSize, keys }) => {
    const head = await checkHead(panel, keys);
    newSize ??= head.size;
    if (!(oldSize <= newSize && newSize <= head.size)) throw new Unproven(`sizes must rise: ${oldSize}, ${newSize}, ${head.size}`);
    const tiles = new Tiles(head.size);
    const roots = {};
    for (const size of [oldSize, newSize, head.size]) roots[size] = size ? await tiles.root(size) : await hash(new Uint8Array());
    if (!isSame(roots[head.size], head.root)) throw new Unproven("the tiles do not lead to the root of the signed head");
    if (oldRoot && !isSame(oldRoot, roots[oldSize])) {
      throw new Unproven(`the older head has the root ${toHex(oldRoot)}, but this log has ${toHex(roots[oldSize])} at that size: it tells another history`);
    }
    if (oldRoot) panel.note(`The root of the older head is the one this log has at ${oldSize.toLocaleString()} entries.`);
    for (const [from, to] of [[oldSize, newSize], [newSize, head.size]]) {
      const proof = await tiles.proof(consistencyNodes(from, to));
      await verifyConsistency(proof, from, roots[from], to, roots[to]);
      if (from !== to) panel.note(`${proof.length} hashes prove that the first ${from.toLocaleString()} of ${to.toLocaleString()} entries are the same.`);
    }
    panel.say("good", `Yes. Your browser has just checked that the heads over ${oldSize.toLocaleString()} and ${newSize.toLocaleString()} entries tell one history.`);
  };

  const run = async (panel, check) => {
    panel.begin();
    if (!globalThis.crypto?.subtle) {
      panel.say("open", "Browsers check only on pages that came over https or from this machine. Or run: prime-coordinator log verify FOLDER");
      return;
    }
    try {
      await check();
    } catch (error) {
      panel.note(error.message, "✗");
      panel.say("bad", error instanceof Unproven ? "NO. This does not check out: do not believe this page, and tell others." : "The check could not be done.");
    }
  };

  /** The page's log key, and as `entry key` pairs those that the log had before. */
  const readKeys = (section) => {
    const pairs = section.dataset.rotated.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => line.split(" "));
    return { key: section.dataset.key, rotated: pairs.map(([index, key]) => ({ index: Number(index), key })) };
  };

  const readRoot = (form, oldSize) => {
    const given = form.elements.old_root.value.trim();
    if (given) return fromBase64(given);
    const row = document.querySelector(`[data-head-size="${oldSize}"]`);
    return row && Uint8Array.from(row.dataset.headRoot.slice(2).match(/../g), (pair) => parseInt(pair, 16));
  };

  const offerConsistency = (section, panel) => {
    const form = section.querySelector("form");
    const begin = () => run(panel, () => {
      const oldSize = Number(form.elements.old.value), fresh = form.elements.new.value;
      return checkConsistency(panel, {
        oldSize, oldRoot: readRoot(form, oldSize), newSize: fresh ? Number(fresh) : undefined, keys: readKeys(section),
      });
    });
    form.addEventListener("submit", (event) => { event.preventDefault(); begin(); });
    if (form.elements.old.value) begin();
    else panel.say("open", "Name the number of entries under an older head, or choose one below.");
  };

  for (const section of document.querySelectorAll("[data-proof]")) {
    const panel = new Panel(section);
    if (section.dataset.proof === "consistency") offerConsistency(section, panel);
    else {
      const { index, leaf } = section.dataset;
      run(panel, () => checkInclusion(panel, { index: Number(index), leaf, keys: readKeys(section) }));
    }
  }
})();
