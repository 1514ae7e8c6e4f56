package part

import "time"

// retryInterval is the time after which something that failed is tried again.
const retryInterval = time.Minute

// RetryTimer returns a channel that receives once what failed with an error is to be tried again:
// in a minute. For no error it returns nil.
func RetryTimer(err error) <-chan time.Time {
	if err == nil {
		return nil
	}
	return time.After(retryInterval)
}
