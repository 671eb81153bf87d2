package node

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
	"github.com/takt-dev/takt/kubernetes/internal/objects"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// link is a taktd with one link. It installs what it is told to, unless it refuses.
type link struct {
	adminv1.AdminClient
	has     adminv1.LinkSchedule
	refuses error
	// pends is a base time that is pending whatever the clock says.
	pends int64
	// installed is what it was told.
	installed []*adminv1.InstallScheduleRequest
}

func (l *link) ListSchedules(context.Context, *adminv1.ListSchedulesRequest, ...grpc.CallOption) (*adminv1.ListSchedulesResponse, error) {
	return &adminv1.ListSchedulesResponse{Links: []*adminv1.LinkSchedule{{
		Datapath: "udp", LinkRateBps: l.has.LinkRateBps, Operational: l.has.Operational, Pending: l.has.Pending, Vlan: l.has.Vlan, Priorities: l.has.Priorities,
		OtherTraffic: l.has.OtherTraffic, OtherTrafficProblem: l.has.OtherTrafficProblem,
	}}}, nil
}

func (l *link) InstallSchedule(_ context.Context, request *adminv1.InstallScheduleRequest, _ ...grpc.CallOption) (*adminv1.InstallScheduleResponse, error) {
	if l.refuses != nil {
		return nil, l.refuses
	}
	l.installed = append(l.installed, request)
	if l.has.Operational == nil {
		l.has.LinkRateBps = request.GetLinkRateBps()
	}
	if begins := request.GetSchedule().GetBaseTimeNs(); begins > objects.TAI() || begins == l.pends {
		l.has.Pending = request.GetSchedule()
		return &adminv1.InstallScheduleResponse{BeginsNs: begins}, nil
	}
	l.has.Operational, l.has.Pending, l.has.LinkRateBps = request.GetSchedule(), nil, request.GetLinkRateBps()
	l.has.Vlan, l.has.Priorities, l.has.OtherTraffic = request.GetVlan(), request.GetClasses(), request.GetOtherTraffic()
	return &adminv1.InstallScheduleResponse{}, nil
}

func (l *link) RemoveSchedule(context.Context, *adminv1.RemoveScheduleRequest, ...grpc.CallOption) (*adminv1.RemoveScheduleResponse, error) {
	if l.refuses != nil {
		return nil, l.refuses
	}
	l.has = adminv1.LinkSchedule{}
	return &adminv1.RemoveScheduleResponse{Removed: true}, nil
}

func (l *link) bases() []int64 { return present(&l.has) }

// scheduled is a node whose agent may end at any time: each step is another agent's, which knows only what is on the node
// and what the object says.
func scheduled(t *testing.T, dir string, l *link, self *network.TaktNode) {
	t.Helper()
	n := &Node{name: nodeName}
	n.config.RunDirectory = dir
	m := &member{n: n, admin: l}
	e, err := m.loadEntered()
	if err == nil {
		err = m.schedule(background, self, e)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func revisionAt(generation, begins int64) network.Revision {
	r := network.Revision{Name: "line", UID: "uid", Generation: generation, BeginsNanoseconds: begins}
	r.CycleTime, r.Entries = 1_000_000, []network.GateEntry{{Gates: []int32{7}, Interval: 1_000_000}}
	return r
}

func assignedTo(revisions ...network.Revision) *network.TaktNode {
	self := &network.TaktNode{Spec: network.TaktNodeSpec{Planned: true}}
	for _, revision := range revisions {
		// As when all nodes have taken it.
		self.Spec.Schedules = append(self.Spec.Schedules, network.Assignment{Datapath: "udp", Revision: revision, Committed: true})
	}
	return self
}

func TestSchedulesAreReportedByTheNamesThatTheClusterGaveThem(t *testing.T) {
	self := assignedTo(revisionAt(2, 2_000_000_002))
	self.Name = nodeName
	was := revisionAt(1, 1_000_000_001)
	self.Spec.Schedules[0].Previous = &was
	n := &Node{name: nodeName}
	n.cluster = &member{n: n}
	n.cluster.withoutObjects()
	if err := n.cluster.nodes.GetStore().Add(self); err != nil {
		t.Fatal(err)
	}
	all := &adminv1.ListSchedulesResponse{Links: []*adminv1.LinkSchedule{
		{Datapath: "udp", Operational: &adminv1.GateSchedule{BaseTimeNs: 1_000_000_001, CycleTimeNs: 1_000_000}, Pending: &adminv1.GateSchedule{BaseTimeNs: 2_000_000_002, CycleTimeNs: 250_000}},
		{Datapath: "xdp", Operational: &adminv1.GateSchedule{BaseTimeNs: 1_000_000_001, CycleTimeNs: 500_000}},
		{Datapath: "dpdk"},
	}}
	want := []report.Schedule{{Datapath: "udp", Name: "line", Running: true, Cycle: "1ms"}, {Datapath: "udp", Name: "line", Cycle: "250us"}, {Datapath: "xdp", Running: true, Cycle: "500us"}}
	if got := n.schedules(all); !slices.Equal(got, want) {
		t.Errorf("%+v and not %+v", got, want)
	}
}

func TestAScheduleIsTakenBackWhoseStatusWasNeverWritten(t *testing.T) {
	dir, far := t.TempDir(), objects.TAI()+3_600_000_000_000
	first, second := revisionAt(1, 1_000_000_001), revisionAt(2, far)
	l := &link{}
	scheduled(t, dir, l, assignedTo(second))
	if !slices.Equal(l.bases(), []int64{far}) {
		t.Fatalf("the link has %v", l.bases())
	}
	// Another node has refused it meanwhile, and the API server has not taken what this one has said: its status is empty.
	scheduled(t, dir, l, assignedTo())
	if len(l.bases()) > 0 {
		t.Errorf("the link goes on with %v", l.bases())
	}

	scheduled(t, dir, l, assignedTo(first))
	scheduled(t, dir, l, assignedTo(second))
	back := assignedTo(first)
	scheduled(t, dir, l, back)
	if said := back.Status.Schedules[0]; said.State != network.Running || !slices.Equal(l.bases(), []int64{1_000_000_001}) {
		t.Errorf("the link has %v, and the node says %+v", l.bases(), said)
	}
	// An operator's is nobody else's.
	l.has = adminv1.LinkSchedule{Operational: &adminv1.GateSchedule{BaseTimeNs: 5}}
	scheduled(t, dir, l, assignedTo())
	if !slices.Equal(l.bases(), []int64{5}) {
		t.Errorf("the operator's schedule has become %v", l.bases())
	}
}

func TestATaktNodeThatIsMadeAnewTakesNoScheduleAway(t *testing.T) {
	dir, l, first := t.TempDir(), &link{}, revisionAt(1, 1_000_000_001)
	scheduled(t, dir, l, assignedTo(first))
	// The object was deleted; this is the one that the agent makes.
	anew := &network.TaktNode{}
	scheduled(t, dir, l, anew)
	if !slices.Equal(l.bases(), []int64{1_000_000_001}) {
		t.Fatalf("the link has %v", l.bases())
	}
	// The controller says again what it said before; then that it is not assigned any more.
	back := assignedTo(first)
	scheduled(t, dir, l, back)
	if said := back.Status.Schedules[0]; said.State != network.Running || !slices.Equal(l.bases(), []int64{1_000_000_001}) {
		t.Errorf("the link has %v, and the node says %+v", l.bases(), said)
	}
	scheduled(t, dir, l, assignedTo())
	if len(l.bases()) > 0 {
		t.Errorf("the link goes on with %v", l.bases())
	}
}

// Two generations may begin at the same instant, which their base time asks for.
func TestWhateverChangesOfAScheduleIsInstalled(t *testing.T) {
	within, gates := network.Duration(1000), []int32{0}
	changes := map[string]func(*network.Revision){
		"rate": func(r *network.Revision) { r.Rate = 5 }, "vlan": func(r *network.Revision) { r.VLAN = true },
		"otherTraffic": func(r *network.Revision) { r.OtherTraffic = "auto" },
		"entries":      func(r *network.Revision) { r.Entries = []network.GateEntry{{Gates: []int32{6}, Interval: 1_000_000}} },
		"maxSDU":       func(r *network.Revision) { r.MaxSDU = []network.MaxSDU{{Class: 5, Octets: 100}} }, "requireSync": func(r *network.Revision) { r.RequireSync = &within },
		"priorities": func(r *network.Revision) { r.Priorities = []int32{1, 0, 2, 3, 4, 5, 6, 7} }, "initialGates": func(r *network.Revision) { r.InitialGates = &gates },
		"selection":          func(r *network.Revision) { r.Selection = []network.Selection{{Class: 3, Algorithm: "first-come"}} },
		"cycleTimeExtension": func(r *network.Revision) { r.CycleTimeExtension = 1000 },
	}
	for name, change := range changes {
		for _, begins := range []int64{objects.TAI() + 3_600_000_000_000, 1_000_000_001} {
			dir, l, first := t.TempDir(), &link{}, revisionAt(1, begins)
			second := revisionAt(2, begins)
			change(&second)
			scheduled(t, dir, l, assignedTo(first))
			// taktd refuses it, and has the first one as before; then it takes it, and another agent knows that.
			l.refuses = status.Error(codes.InvalidArgument, "no")
			refused := assignedTo(second)
			scheduled(t, dir, l, refused)
			scheduled(t, dir, l, refused)
			if said := refused.Status.Schedules[0]; said.State != network.Refused {
				t.Errorf("%s: the node says %+v of what was refused", name, said)
			}
			l.refuses = nil
			for range 2 {
				self := assignedTo(second)
				scheduled(t, dir, l, self)
				if said := self.Status.Schedules[0]; said.State == network.Refused || said.Generation != 2 {
					t.Errorf("%s: the node says %+v", name, said)
				}
			}
			if len(l.installed) != 2 {
				t.Errorf("%s: %d were installed: %v", name, len(l.installed), l.installed)
			}
		}
	}
}

// What a real one tells of a schedule is what it was told.
func TestTaktdGivesBackTheScheduleThatItWasGiven(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), AdminSocket: filepath.Join(s.dir, "admin.sock"), Preload: "/l.so"}
	s.taktd("")
	connection, err := grpc.NewClient("unix:"+s.config.Network.AdminSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	admin := adminv1.NewAdminClient(connection)
	rich := revisionAt(1, objects.TAI()-5_000_000_000)
	gates := []int32{0, 7}
	rich.Rate, rich.VLAN, rich.CycleTimeExtension, rich.InitialGates = 1_000_000_000, true, 1000, &gates
	// Not kept here: the loopback has one queue.
	rich.OtherTraffic = "auto"
	rich.MaxSDU, rich.Priorities = []network.MaxSDU{{Class: 5, Octets: 100}}, []int32{1, 0, 2, 3, 4, 5, 6, 7}
	rich.Selection = []network.Selection{{Class: 7, Algorithm: "credit-based", IdleSlope: 1_000_000}, {Class: 3, Algorithm: "first-come"}, {Class: 1, Algorithm: "launch-time"}}
	// Beside one that runs, without a rate.
	coming := revisionAt(3, objects.TAI()+3_600_000_000_000)
	coming.Rate = 1_000_000_000
	plain := revisionAt(2, objects.TAI()-4_000_000_000)
	plain.OtherTraffic = "port"
	for _, revision := range []network.Revision{rich, plain, coming} {
		asked, err := objects.Request("udp", &revision)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := admin.InstallSchedule(background, asked, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
		s.until("taktd has what it was given", func() bool {
			all, err := admin.ListSchedules(background, &adminv1.ListSchedulesRequest{})
			link := linkOf(all, "udp")
			told := strings.Contains(warnings(link), "what others send is not kept inside the schedule: ")
			return err == nil && same(link, asked, digest(asked)) && told == (revision.OtherTraffic == "auto")
		})
	}
}

func TestAnyRefusalOfTaktdIsThatOfASchedule(t *testing.T) {
	dir := t.TempDir()
	l := &link{}
	scheduled(t, dir, l, assignedTo(revisionAt(1, 1_000_000_001)))
	for _, code := range []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.ResourceExhausted, codes.Internal, codes.Unimplemented} {
		l.refuses = status.Error(code, "no "+strings.Repeat("é", 600))
		self := assignedTo(revisionAt(2, 1_000_000_002))
		scheduled(t, dir, l, self)
		if said := self.Status.Schedules[0]; said.State != network.Refused || !strings.HasPrefix(said.Message, "no é") || len(said.Message) > 520 {
			t.Errorf("%v: the node says %+v", code, said)
		}
		self = assignedTo()
		scheduled(t, dir, l, self)
		if len(self.Status.Schedules) != 1 || self.Status.Schedules[0].State != network.Refused || len(l.bases()) != 1 {
			t.Errorf("%v: the schedule that cannot be taken away is forgotten: %+v", code, self.Status.Schedules)
		}
	}
	// What does not answer is absent.
	l.refuses = status.Error(codes.Unavailable, "nobody there")
	n := &Node{name: nodeName}
	n.config.RunDirectory = dir
	m := &member{n: n, admin: l}
	e, err := m.loadEntered()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.schedule(background, assignedTo(), e); err == nil {
		t.Errorf("taktd does not answer, and nothing is said of it: %s", filepath.Join(dir, "entered.json"))
	}
}

func TestAScheduleWhoseInstantHasPassedIsForNodesThatComeLaterAlone(t *testing.T) {
	dir, l, passed := t.TempDir(), &link{}, revisionAt(1, objects.TAI()-5_000_000_000)
	self := assignedTo(passed)
	self.Spec.Schedules[0].Committed = false
	scheduled(t, dir, l, self)
	if said := self.Status.Schedules[0]; said.State != network.Refused || !strings.Contains(said.Message, "this node's clock") || len(l.bases()) > 0 {
		t.Errorf("the node says %+v and has %v", said, l.bases())
	}
	self.Spec.Schedules[0].Committed = true
	scheduled(t, dir, l, self)
	if said := self.Status.Schedules[0]; said.State != network.Running {
		t.Errorf("the node says %+v", said)
	}
	// What runs already is not asked again.
	self.Spec.Schedules[0].Committed = false
	scheduled(t, dir, l, self)
	if said := self.Status.Schedules[0]; said.State != network.Running {
		t.Errorf("the node says %+v", said)
	}
}

// Who decides may end before it has: then no node begins.
func TestAScheduleThatIsNotCommittedDoesNotBegin(t *testing.T) {
	first, soon := revisionAt(1, 1_000_000_001), revisionAt(2, objects.TAI())
	for _, tc := range []struct {
		name     string
		runs     bool
		previous *network.Revision
		wanted   []int64
	}{
		{"none before", false, nil, nil},
		{"one before", true, &first, []int64{first.BeginsNanoseconds}},
		{"one before that the object has not", true, nil, []int64{first.BeginsNanoseconds}},
		{"none before, and the agent has ended before it noted that", false, nil, nil},
	} {
		dir, l := t.TempDir(), &link{pends: soon.BeginsNanoseconds}
		if tc.runs {
			scheduled(t, dir, l, assignedTo(first))
		}
		scheduled(t, dir, l, assignedTo(soon))
		if strings.HasSuffix(tc.name, "noted that") {
			m := &member{n: &Node{config: Config{RunDirectory: dir}}}
			e, err := m.loadEntered()
			if err == nil {
				e.Asked = nil
				err = m.store(e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		self := assignedTo(soon)
		self.Spec.Schedules[0].Committed, self.Spec.Schedules[0].Previous = false, tc.previous
		for range 2 {
			scheduled(t, dir, l, self)
			if said := self.Status.Schedules[0]; said.State != network.Expired || !strings.Contains(said.Message, "see that takt-controller runs") || !slices.Equal(l.bases(), tc.wanted) {
				t.Errorf("%s: the node says %+v, and the link has %v", tc.name, said, l.bases())
			}
		}
		// What was there before is known to be the cluster's.
		if tc.runs {
			back := assignedTo(first)
			scheduled(t, dir, l, back)
			if said := back.Status.Schedules[0]; said.State != network.Running || len(l.installed) != 3 {
				t.Errorf("%s: the node says %+v, and %d were installed", tc.name, said, len(l.installed))
			}
		}
	}
}

// What is given back may itself begin later: it is not taken for what was not committed.
func TestWhatIsGivenBackMayBeginLater(t *testing.T) {
	dir, first, soon := t.TempDir(), revisionAt(1, objects.TAI()+3_600_000_000_000), revisionAt(2, objects.TAI())
	l := &link{pends: soon.BeginsNanoseconds}
	scheduled(t, dir, l, assignedTo(first))
	scheduled(t, dir, l, assignedTo(soon))
	self := assignedTo(soon)
	self.Spec.Schedules[0].Committed, self.Spec.Schedules[0].Previous = false, &first
	for range 3 {
		scheduled(t, dir, l, self)
		if said := self.Status.Schedules[0]; said.State != network.Expired || !slices.Equal(l.bases(), []int64{first.BeginsNanoseconds}) || len(l.installed) != 3 {
			t.Errorf("the node says %+v, the link has %v, and %d were installed", said, l.bases(), len(l.installed))
		}
	}
}

func TestANumberOfPeersAloneIsNotWorthAWriteEachTime(t *testing.T) {
	m, began := &member{}, time.Unix(1_800_000_000, 0)
	had := &network.TaktNodeStatus{Peers: "0/999"}
	if m.quiet(&network.TaktNodeStatus{}, had, began) {
		t.Error("the first status is not written")
	}
	if counted := (&network.TaktNodeStatus{Peers: "998/999"}); !m.quiet(had, counted, began.Add(time.Second)) || m.quiet(had, counted, began.Add(tellPeers)) {
		t.Error("a number of peers is written at once, or never")
	}
	if m.quiet(had, &network.TaktNodeStatus{Peers: "998/999", Runtime: &network.Runtime{}}, began.Add(tellPeers+time.Second)) {
		t.Error("what else has changed is not written")
	}
}

func TestWarningsOfAScheduleAreToldBriefly(t *testing.T) {
	if told := warnings(nil); told != "" {
		t.Errorf("of no link: %q", told)
	}
	told := warnings(&adminv1.LinkSchedule{Warnings: []string{"a", "b", "c", "d", strings.Repeat("e", 1000)}})
	if told != "a; b; c; and 2 more: takt schedule check" {
		t.Errorf("%q", told)
	}
	told = warnings(&adminv1.LinkSchedule{Warnings: []string{"a"}, OtherTrafficProblem: "no taprio"})
	if told != "what others send is not kept inside the schedule: no taprio; a" {
		t.Errorf("%q", told)
	}
}
