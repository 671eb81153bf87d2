import io.aeron.Aeron;
import io.aeron.FragmentAssembler;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.agrona.concurrent.AgentInvoker;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * One side of a measurement of Aeron, for takt-bench-peers: role, address, port, payload, and the far side's options. Media driver,
 * conductor and application share one thread, which polls: there is one core for each side. What it measured goes to standard
 * output: "ready", then numbers, a line each.
 */
public class AeronPeer {
    static final long PATIENCE_NS = 10_000_000_000L;
    static final int STREAM = 1;
    static AgentInvoker driver;
    static AgentInvoker conductor;
    static final PrintStream OUT = new PrintStream(new BufferedOutputStream(System.out, 1 << 16));

    public static void main(String[] args) throws Exception {
        String there = args[1] + ":" + args[2];
        String control = args[1] + ":" + (Integer.parseInt(args[2]) + 1);
        int payload = Integer.parseInt(args[3]);
        Path directory = Files.createTempDirectory(Path.of("/dev/shm"), "takt-bench-aeron");
        MediaDriver.Context context = new MediaDriver.Context()
            .aeronDirectoryName(directory.toString()).dirDeleteOnStart(true).dirDeleteOnShutdown(true)
            .threadingMode(ThreadingMode.INVOKER).spiesSimulateConnection(false)
            .socketSndbufLength(2 << 20).socketRcvbufLength(2 << 20).initialWindowLength(2 << 20);
        try (MediaDriver media = MediaDriver.launch(context)) {
            driver = media.sharedAgentInvoker();
            Aeron.Context client = new Aeron.Context().aeronDirectoryName(directory.toString())
                .useConductorAgentInvoker(true).driverAgentInvoker(driver);
            try (Aeron aeron = Aeron.connect(client)) {
                conductor = aeron.conductorAgentInvoker();
                String to = "aeron:udp?endpoint=" + there;
                String answers = "aeron:udp?control=" + control + "|control-mode=dynamic";
                switch (args[0]) {
                    case "pub" -> publish(aeron.addPublication(to, STREAM), payload, Long.parseLong(args[4]));
                    case "sub" -> subscribe(aeron.addSubscription(to, STREAM));
                    case "ping" -> ping(aeron.addPublication(to, STREAM),
                        aeron.addSubscription("aeron:udp?endpoint=0.0.0.0:0|control=" + control + "|control-mode=dynamic", STREAM),
                        payload, Integer.parseInt(args[4]), Integer.parseInt(args[5]));
                    case "pong" -> pong(aeron.addSubscription(to, STREAM), aeron.addPublication(answers, STREAM));
                    default -> throw new IllegalArgumentException(args[0]);
                }
                OUT.flush();
            }
        }
    }

    static void poll() {
        driver.invoke();
        conductor.invoke();
    }

    static void tell(Object line) {
        OUT.println(line);
        OUT.flush();
    }

    interface Condition { boolean isMet(); }

    static void await(String what, Condition condition) {
        long start = System.nanoTime();
        while (!condition.isMet()) {
            poll();
            if (System.nanoTime() - start > PATIENCE_NS) {
                throw new IllegalStateException("no " + what + " within 10 s");
            }
        }
    }

    static void send(Publication publication, UnsafeBuffer buffer, int length) {
        while (true) {
            long result = publication.offer(buffer, 0, length);
            if (result >= 0) {
                return;
            }
            if (result == Publication.CLOSED || result == Publication.MAX_POSITION_EXCEEDED) {
                throw new IllegalStateException("the publication is closed");
            }
            poll();
        }
    }

    static void publish(Publication publication, int payload, long durationMs) {
        await("subscriber", publication::isConnected);
        UnsafeBuffer buffer = new UnsafeBuffer(new byte[Math.max(payload, 1)]);
        long end = System.nanoTime() + durationMs * 1_000_000, sent = 0;
        while (System.nanoTime() < end) {
            for (int at = 0; at < 32; at++, sent++) {
                send(publication, buffer, payload);
            }
            poll();
        }
        send(publication, buffer, 1);
        await("end of the subscriber", () -> !publication.isConnected());
        OUT.println(sent);
    }

    static void subscribe(Subscription subscription) {
        long[] counted = new long[4]; // messages, bytes, first, end
        FragmentAssembler assembler = new FragmentAssembler((buffer, offset, length, header) -> {
            if (length == 1) {
                counted[3] = System.nanoTime();
                return;
            }
            if (counted[0]++ == 0) {
                counted[2] = System.nanoTime();
            }
            counted[1] += length;
        });
        tell("ready");
        while (counted[3] == 0) {
            poll();
            subscription.poll(assembler, 64);
        }
        OUT.println(counted[0]);
        OUT.println(counted[1]);
        OUT.println(counted[3] - counted[2]);
    }

    static void ping(Publication publication, Subscription answers, int payload, int warmUp, int count) {
        await("subscriber", () -> publication.isConnected() && answers.isConnected());
        UnsafeBuffer buffer = new UnsafeBuffer(new byte[payload]);
        long[] answered = {-1};
        FragmentAssembler assembler = new FragmentAssembler((from, offset, length, header) -> answered[0] = from.getLong(offset));
        for (long sequence = 0; sequence < warmUp + count; sequence++) {
            long start = System.nanoTime();
            buffer.putLong(0, sequence);
            send(publication, buffer, payload);
            while (answered[0] != sequence) {
                poll();
                answers.poll(assembler, 8);
                if (System.nanoTime() - start > PATIENCE_NS) {
                    throw new IllegalStateException("no answer");
                }
            }
            if (sequence >= warmUp) {
                OUT.println(System.nanoTime() - start);
            }
        }
        send(publication, buffer, 1);
        await("end of the subscriber", () -> !publication.isConnected());
    }

    static void pong(Subscription subscription, Publication answers) {
        boolean[] ended = {false};
        UnsafeBuffer copy = new UnsafeBuffer(new byte[1 << 20]);
        FragmentAssembler assembler = new FragmentAssembler((buffer, offset, length, header) -> {
            if (length == 1) {
                ended[0] = true;
                return;
            }
            copy.putBytes(0, buffer, offset, length);
            send(answers, copy, length);
        });
        tell("ready");
        while (!ended[0]) {
            poll();
            subscription.poll(assembler, 8);
        }
    }
}
