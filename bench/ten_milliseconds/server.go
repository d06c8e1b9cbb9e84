// The peer in Go: net/http, a handler that sleeps.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	port := flag.Int("port", 8080, "port on the loopback address")
	ms := flag.Int("ms", 10, "milliseconds a request takes")
	flag.Parse()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if *ms > 0 {
			time.Sleep(time.Duration(*ms) * time.Millisecond)
		}
	})
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	fmt.Fprintln(os.Stderr, http.Serve(listener, nil))
	os.Exit(1)
}
