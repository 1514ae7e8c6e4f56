package lifecycle

import "time"

// retryInterval is the time between a failed attempt and the next one.
const retryInterval = time.Minute

// RetryTimer returns a channel that receives when the next attempt is due, a minute after one
// failed with err. It returns nil if err is nil.
func RetryTimer(err error) <-chan time.Time {
	if err == nil {
		return nil
	}
	return time.After(retryInterval)
}
