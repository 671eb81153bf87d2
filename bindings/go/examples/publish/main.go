// Publishes a temperature on channel 7, ten times a second, until it is stopped.
package main

import (
	"context"
	"encoding/binary"
	"log"
	"math"
	"time"

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
	source, err := stream.Source(7, 0)
	if err != nil {
		log.Fatal(err)
	}
	for i := 0.0; ; i++ {
		value := math.Float64bits(20 + 5*math.Sin(i/50))
		if _, err := source.Send(context.Background(), binary.NativeEndian.AppendUint64(nil, value)); err != nil {
			log.Print(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
