package status

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"outrider.org/outrider/agent/backoff"
)

// epochHeader is the response header with the number of the epoch.
const epochHeader = "X-Outrider-Epoch"

// During a hot restart there is a time when the old epoch has closed its admin interface and the
// new epoch is not live yet. GET requests are retried every handOverStep for handOverTime.
const (
	handOverTime = 2 * time.Second
	handOverStep = 25 * time.Millisecond
)

// unavailableError says why no admin interface is available.
type unavailableError struct{ reason string }

func (e *unavailableError) Error() string { return e.reason }

// live is an HTTP transport to the admin interface of the epoch that is live when a request is
// sent.
type live struct{ proxy Proxy }

// RoundTrip sends a request to the live epoch. It retries a GET or HEAD without a body for
// handOverTime while the interface refuses connections.
func (l live) RoundTrip(request *http.Request) (*http.Response, error) {
	again := request.Body == nil && (request.Method == http.MethodGet ||
		request.Method == http.MethodHead)
	deadline := time.Now().Add(handOverTime)
	for {
		admin, epoch, err := l.proxy.LiveAdmin()
		if err != nil {
			return nil, &unavailableError{err.Error()}
		}
		response, err := admin.RoundTrip(request)
		if err == nil {
			response.Header.Set(epochHeader, strconv.Itoa(epoch))
			response.Request = request
			return response, nil
		}
		if request.Context().Err() != nil {
			return nil, err
		}
		refused, ok := errors.AsType[*net.OpError](err)
		dial := ok && refused.Op == "dial"
		if dial && again && time.Now().Before(deadline) {
			if err := backoff.Sleep(request.Context(), handOverStep); err != nil {
				return nil, err
			}
			continue
		}
		if dial {
			return nil, &unavailableError{fmt.Sprintf(
				"epoch %d serves, but its admin interface takes no connections: %v", epoch, err)}
		}
		return nil, &unavailableError{fmt.Sprintf(
			"the admin interface of epoch %d does not answer: %v", epoch, err)}
	}
}
