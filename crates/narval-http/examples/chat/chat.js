"use strict";

const $ = id => document.getElementById(id);
const RETRY_MS_MAX = 15000;

let socket = null;
let retry = null;
let wait = 500;

// The address holds the room, so that it can be given to others; the name stays in this browser.
const place = new URLSearchParams(location.hash.slice(1));
$("name").value = place.get("name") || localStorage.getItem("name") || "";
$("room").value = place.get("room") || "lobby";
if (place.get("room") && $("name").value) join();

fetch("/rooms").then(answer => answer.json()).then(rooms => {
  for (const name of rooms) {
    const option = document.createElement("option");
    option.value = name;
    $("known").append(option);
  }
}).catch(() => {});

$("join").addEventListener("submit", event => { event.preventDefault(); join(); });
$("leave").addEventListener("click", () => leave(""));

function join() {
  const name = $("name").value.trim(), room = $("room").value.trim();
  if (!name || !room) return;
  localStorage.setItem("name", name);
  history.replaceState(null, "", "#" + new URLSearchParams({ room }));
  document.title = room;
  $("title").textContent = room;
  $("messages").replaceChildren();
  $("join").hidden = true;
  $("chat").hidden = false;
  connect(name, room);
  $("text").focus();
}

function leave(why) {
  clearTimeout(retry);
  const old = socket;
  socket = null;
  if (old) old.close(1000);
  history.replaceState(null, "", location.pathname);
  document.title = "Rooms";
  $("chat").hidden = true;
  $("join").hidden = false;
  $("refused").textContent = why;
  $("refused").hidden = !why;
}

function connect(name, room) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const mine = new WebSocket(`${scheme}://${location.host}/rooms/${encodeURIComponent(room)}?name=${encodeURIComponent(name)}`);
  socket = mine;
  state("connecting …", true);
  mine.onopen = () => { wait = 500; $("messages").replaceChildren(); };
  mine.onmessage = event => receive(JSON.parse(event.data), name);
  mine.onclose = event => {
    if (socket !== mine) return;
    // 1008 is the server's no: trying again would get the same answer.
    if (event.code === 1008) return leave(event.reason);
    state("connection lost, trying again …", true);
    retry = setTimeout(() => connect(name, room), wait);
    wait = Math.min(wait * 2, RETRY_MS_MAX);
  };
}

function state(text, away) {
  $("state").textContent = text;
  $("state").classList.toggle("away", away);
  $("write").querySelector("button").disabled = away;
}

function receive(event, name) {
  if (event.members !== undefined) state(event.members === 1 ? "only you" : `${event.members} here`, false);
  const list = $("messages"), atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  const line = document.createElement("li");
  if (event.note) {
    line.className = "note";
    line.textContent = event.note;
  } else if (event.text) {
    const from = document.createElement("span"), who = document.createElement("b");
    from.className = "from";
    who.textContent = event.from;
    from.append(who, " ", new Date(event.at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }));
    line.append(from, event.text);
    line.classList.toggle("own", event.from === name);
  } else {
    return;
  }
  list.append(line);
  if (atEnd) list.scrollTop = list.scrollHeight;
}

$("write").addEventListener("submit", event => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text && socket && socket.readyState === WebSocket.OPEN) {
    socket.send(text);
    $("text").value = "";
  }
  $("text").focus();
});

$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("write").requestSubmit();
  }
});
