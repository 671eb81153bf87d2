package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/takt-dev/takt/kubernetes/internal/report"
)

// viewers are those who may read what the agent says of pods. The API server, by which they come, says of nobody who it is, and
// every pod reaches the agent's port: who asks shows a token of the one user that may, which is good for nothing else.
type viewers struct {
	n *Node
	// review bounds how often the API server is asked in all: anybody may show tokens.
	review flowcontrol.RateLimiter

	mu sync.Mutex
	// known are tokens that were good, each until when that is not asked again.
	known map[[sha256.Size]byte]time.Time
	// askers are those whose tokens were not known, by address.
	askers map[netip.Addr]*asking
}

// asking bounds how often the API server is asked for one address, so that nobody has the turns of others.
type asking struct {
	review flowcontrol.RateLimiter
	last   time.Time
}

// How often tokens are looked at, and for how long one that was good is.
const (
	reviewsPerSecond = 2
	reviewsAtOnce    = 10
	// Of all addresses together.
	allReviewsPerSecond = 10
	allReviewsAtOnce    = 40
	mostAskers          = 1024
	reviewHolds         = time.Minute
)

func newViewers(n *Node) *viewers {
	return &viewers{n: n, review: flowcontrol.NewTokenBucketRateLimiter(allReviewsPerSecond, allReviewsAtOnce),
		known: map[[sha256.Size]byte]time.Time{}, askers: map[netip.Addr]*asking{}}
}

// mayAsk says whether the API server may be asked for an address. Call with v.mu held.
func (v *viewers) mayAsk(from netip.Addr, now time.Time) bool {
	one := v.askers[from]
	if one == nil {
		if len(v.askers) >= mostAskers {
			// Who has been silent for so long may ask as one that is new.
			maps.DeleteFunc(v.askers, func(_ netip.Addr, of *asking) bool {
				return now.Sub(of.last) > reviewsAtOnce*time.Second/reviewsPerSecond
			})
		}
		if len(v.askers) >= mostAskers {
			return false
		}
		one = &asking{review: flowcontrol.NewTokenBucketRateLimiter(reviewsPerSecond, reviewsAtOnce)}
		v.askers[from] = one
	}
	one.last = now
	return one.review.TryAccept() && v.review.TryAccept()
}

// admit says why a request is not answered, with its HTTP status; nil if it is.
func (v *viewers) admit(ctx context.Context, request *http.Request) (status int, err error) {
	token, wanted := request.Header.Get(report.TokenHeader), v.n.config.Viewer
	if wanted == "" {
		return http.StatusForbidden, fmt.Errorf("the agent's configuration names nobody who may see its pods: write viewer, the user whose tokens are shown")
	}
	if token == "" {
		return http.StatusUnauthorized, fmt.Errorf("a token of %s for audience %s is missing (%s): kubectl takt of this version shows one", wanted, report.Audience, report.TokenHeader)
	}
	key := sha256.Sum256([]byte(token))
	now := time.Now()
	v.mu.Lock()
	maps.DeleteFunc(v.known, func(_ [sha256.Size]byte, until time.Time) bool { return now.After(until) })
	_, good := v.known[key]
	may := good || v.mayAsk(sourceOf(request.RemoteAddr), now)
	v.mu.Unlock()
	if good {
		return 0, nil
	}
	if !may {
		return http.StatusTooManyRequests, fmt.Errorf("more than %d tokens are shown in a second: try again", reviewsPerSecond)
	}
	ctx, cancel := context.WithTimeout(ctx, askAPI)
	defer cancel()
	review, err := v.n.client.AuthenticationV1().TokenReviews().Create(ctx, &authentication.TokenReview{
		Spec: authentication.TokenReviewSpec{Token: token, Audiences: []string{report.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("the API server does not say whose token it is: %w", err)
	}
	if is := review.Status; !is.Authenticated || !slices.Contains(is.Audiences, report.Audience) || is.User.Username != wanted {
		return http.StatusForbidden, fmt.Errorf("the token is not of %s for audience %s", wanted, report.Audience)
	}
	v.mu.Lock()
	v.known[key] = now.Add(reviewHolds)
	v.mu.Unlock()
	return 0, nil
}
