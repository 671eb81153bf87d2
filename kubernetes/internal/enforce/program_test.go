package enforce

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The container's first thread is left alone by those that the program begins.
func init() { runtime.LockOSThread() }

// The test binary is also the program that runs in the tests' containers.
func TestMain(m *testing.M) {
	if os.Getenv("TAKT_TEST_PROGRAM") != "" {
		containerProgram()
		return
	}
	os.Exit(m.Run())
}

// containerProgram does what its input says, one answer per line:
//
//	thread NAME  begins a thread of that name, answers its number as the program sees it
//	rename ID NAME, end ID, ask ID, return ID, fifo ID   are done by that thread
//	spin ID      has that thread run for ever
//	fork         begins a child process with one thread, answers its number; fork apart: in a PID namespace of its own
//	leave        ends the main thread and goes on without it, as pthread_exit does
func containerProgram() {
	type order struct{ words []string }
	threads := map[string]chan order{}
	answers := make(chan string)
	socket := os.Getenv("TAKT_TEST_SOCKET")
	speak := func(verb string) string {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%s %d\n", verb, unix.Gettid())
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(line)
	}
	run := func(name string, orders chan order) {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		setName(name)
		answers <- strconv.Itoa(unix.Gettid())
		for o := range orders {
			switch o.words[0] {
			case "end":
				answers <- "ok"
				return
			case "rename":
				setName(o.words[2])
				answers <- "ok"
			case "reserve", "return":
				answers <- speak(o.words[0])
			case "spin":
				answers <- "ok"
				for {
				}
			case "fifo":
				err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 5}, 0)
				answers <- fmt.Sprint(err)
			}
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	var obey func()
	obey = func() {
		for lines.Scan() {
			words := strings.Fields(lines.Text())
			switch words[0] {
			case "leave":
				go obey()
				fmt.Println("ok")
				unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
			case "thread":
				orders := make(chan order)
				go run(words[1], orders)
				id := <-answers
				threads[id] = orders
				fmt.Println(id)
			case "fork":
				child := exec.Command("/proc/self/exe")
				child.Env = os.Environ()
				if len(words) > 1 {
					child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
				}
				in, _ := child.StdinPipe()
				out, _ := child.StdoutPipe()
				if err := child.Start(); err != nil {
					fmt.Println(err)
					continue
				}
				bufio.NewReader(out).ReadString('\n')
				_ = in // open as long as this program lives
				fmt.Println(child.Process.Pid)
			default:
				threads[words[1]] <- order{words}
				fmt.Println(<-answers)
			}
		}
		os.Exit(0)
	}
	obey()
}

func setName(name string) {
	bytes, err := unix.BytePtrFromString(name)
	if err == nil {
		unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(bytes)), 0, 0, 0)
	}
}

// program is a container made by hand: a cgroup, a PID namespace, a program that obeys.
type program struct {
	t      testing.TB
	cgroup string
	cmd    *exec.Cmd
	in     io.Writer
	out    *bufio.Reader
	socket string
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("setting policies of other processes and making cgroups needs root")
	}
}

// begin starts the program in a cgroup of its own; adjust may add cgroups of version 1 (their directories).
func begin(t testing.TB, alsoIn ...string) *program {
	t.Helper()
	needRoot(t)
	root, err := cgroupRoot("/", "")
	if err != nil {
		t.Skipf("needs cgroup v2 somewhere: %v", err)
	}
	return beginIn(t, filepath.Join(root, fmt.Sprintf("takt-test-%d-%s", os.Getpid(), strings.Map(letters, t.Name()))), alsoIn...)
}

// beginIn starts it in a cgroup that it makes.
func beginIn(t testing.TB, cgroup string, alsoIn ...string) *program {
	t.Helper()
	p := &program{t: t, cgroup: cgroup}
	if err := os.Mkdir(p.cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end(); os.Remove(p.cgroup) })
	p.socket = filepath.Join(t.TempDir(), "ask.sock")
	p.start(alsoIn, syscall.CLONE_NEWPID)
	return p
}

func letters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return -1
}

func (p *program) start(alsoIn []string, namespaces uintptr) {
	p.t.Helper()
	dir, err := os.Open(p.cgroup)
	if err != nil {
		p.t.Fatal(err)
	}
	defer dir.Close()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), "TAKT_TEST_PROGRAM=1", "TAKT_TEST_SOCKET="+p.socket)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL, Setsid: true,
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd.Stderr = os.Stderr
	runtime.LockOSThread() // Pdeathsig is of the thread that forks
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	for _, cgroup := range alsoIn {
		if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(p.cmd.Process.Pid)), 0); err != nil {
			p.t.Fatal(err)
		}
	}
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		p.t.Fatalf("program said %q, %v", line, err)
	}
}

func (p *program) end() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

func (p *program) container() Container {
	return Container{ID: "test", Init: p.cmd.Process.Pid, Root: "/"}
}

// do gives an order and returns the answer.
func (p *program) do(format string, args ...any) string {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s: program ended: %v", fmt.Sprintf(format, args...), err)
	}
	return strings.TrimSpace(line)
}

// outer is the number by which the test knows a thread of the program's first process.
func (p *program) outer(inner string) int {
	p.t.Helper()
	m, err := findMembers(p.container())
	if err != nil {
		p.t.Fatal(err)
	}
	threads, err := m.list()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, thread := range threads {
		if strconv.Itoa(innerID(thread)) == inner {
			return thread.TID
		}
	}
	p.t.Fatalf("thread %s is not there", inner)
	return 0
}
