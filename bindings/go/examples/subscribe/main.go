// Prints the temperatures on channel 7.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"

	takt "github.com/takt-dev/takt/bindings/go"
)

func main() {
	session, err := takt.Open(takt.Options{})
	if err != nil {
		log.Fatal(err)
	}
	stream, err := session.Stream(takt.QoS{})
	if err != nil {
		log.Fatal(err)
	}
	sink, err := stream.Sink(7, takt.SinkOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for {
		message, err := sink.Receive(context.Background())
		if err != nil {
			log.Print(err)
			continue
		}
		fmt.Printf("%.2f degrees\n", math.Float64frombits(binary.NativeEndian.Uint64(message.Data)))
		message.Release()
	}
}
