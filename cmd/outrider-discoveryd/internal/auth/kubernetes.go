package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

const maxReviewBytes = 1 << 20

// tokenReview is the JSON form of a TokenReview of authentication.k8s.io/v1.
type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences"`
	} `json:"spec"`
	Status struct {
		Authenticated bool `json:"authenticated"`
		User          struct {
			Username string `json:"username"`
		} `json:"user"`
		Audiences []string `json:"audiences"`
		Error     string   `json:"error"`
	} `json:"status,omitzero"`
}

// APIServerClient returns the URL of an API server, and an HTTP client with this program's
// credentials for it.
type APIServerClient func() (client *http.Client, url string, err error)

// KubernetesReviewer returns a TokenReviewer that sends a TokenReview to an API server. It calls
// connect for each review. Tokens without the given audience are refused.
func KubernetesReviewer(connect APIServerClient, audience string) TokenReviewer {
	return func(ctx context.Context, token string) (subject string, err error) {
		client, url, err := connect()
		if err != nil {
			return "", &unavailable{err}
		}
		url = strings.TrimSuffix(url, "/") + "/apis/authentication.k8s.io/v1/tokenreviews"
		review := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
		review.Spec.Token, review.Spec.Audiences = token, []string{audience}
		body, err := json.Marshal(review)
		if err != nil {
			return "", err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return "", &unavailable{err}
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			return "", &unavailable{err}
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(io.LimitReader(response.Body, maxReviewBytes))
		if err != nil {
			return "", &unavailable{err}
		}
		if response.StatusCode != http.StatusCreated {
			return "", &unavailable{fmt.Errorf("the API server answers %s to a TokenReview",
				response.Status)}
		}
		if err := json.Unmarshal(text, &review); err != nil {
			return "", &unavailable{err}
		}
		switch of := review.Status; {
		case !of.Authenticated:
			return "", fmt.Errorf("the API server refuses the token: %s", ShortenForLog(of.Error))
		case !slices.Contains(of.Audiences, audience):
			return "", fmt.Errorf("the token is not for audience %q", audience)
		}
		return review.Status.User.Username, nil
	}
}
