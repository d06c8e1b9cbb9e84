// The peer in Node.js: node:http, a handler that waits.
const http = require("node:http");
const option = (name, otherwise) => {
  const at = process.argv.indexOf("--" + name);
  return at < 0 ? otherwise : Number(process.argv[at + 1]);
};
const ms = option("ms", 10);
const server = http.createServer((request, response) => {
  if (ms > 0) setTimeout(() => response.end(), ms);
  else response.end();
});
server.listen(option("port", 8080), "127.0.0.1", () => console.log("listening on 127.0.0.1:" + server.address().port));
