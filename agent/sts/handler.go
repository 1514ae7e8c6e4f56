package sts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"outrider.org/outrider/agent/readfile"
)

const (
	grantType   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccess  = "urn:ietf:params:oauth:token-type:access_token"
	typeJWT     = "urn:ietf:params:oauth:token-type:jwt"
	formType    = "application/x-www-form-urlencoded"
	maximumBody = 64 << 10 // bytes of a request, and of the token file
)

// routes returns the handler of /token and /stsStatus, the paths that Istio's agent uses.
func (s *Server) routes(tokens *cache) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		request, err := s.read(w, r)
		if err == nil {
			var token Token
			if token, err = tokens.get(r.Context(), request); err == nil {
				answer(w, http.StatusOK, success{Access: token.AccessToken, Issued: typeAccess,
					Type: "Bearer", Expires: int64(time.Until(token.Expiry).Seconds())})
				return
			}
		}
		s.options.Logger.Warn("cannot exchange token", "error", err)
		known, ok := errors.AsType[*Error](err)
		if !ok {
			answer(w, http.StatusServiceUnavailable, failure{unavailable, err.Error()})
			return
		}
		answer(w, http.StatusBadRequest, failure{known.Code, known.Description})
	})
	mux.HandleFunc("GET /stsStatus", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"tokens": tokens.list()})
	})
	return mux
}

// success is a response of RFC 8693, section 2.2, failure one of RFC 6749, section 5.2.
type (
	success struct {
		Access  string `json:"access_token"`
		Issued  string `json:"issued_token_type"`
		Type    string `json:"token_type"`
		Expires int64  `json:"expires_in"`
	}
	failure struct {
		Code        string `json:"error"`
		Description string `json:"error_description"`
	}
)

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// read returns the request in a POST. If it has no subject token, that is read from the token file.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (Request, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(readTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maximumBody))
	if err != nil {
		return Request{}, &Error{InvalidRequest, "cannot read the request: " + err.Error()}
	}
	// Remove the deadline: when it expires, net/http cancels the context of r.
	_ = control.SetReadDeadline(time.Time{})
	request, err := parse(r.Header.Get("Content-Type"), string(body))
	if err != nil || request.SubjectToken != "" {
		return request, err
	}
	path := *s.tokenFile.Load()
	if path == "" {
		return Request{}, &Error{InvalidRequest,
			"subject_token is missing; send one or set [identity] token_file"}
	}
	if request.SubjectToken, err = readToken(path); err != nil {
		return Request{}, err
	}
	return request, nil
}

// readToken returns the content of a token file without surrounding white space.
func readToken(path string) (string, error) {
	data, err := readfile.Read(path, maximumBody)
	if err != nil {
		return "", fmt.Errorf("read [identity] token_file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("the file %s of [identity] token_file is empty", path)
	}
	return token, nil
}

// parse validates the form of a request, which may lack the subject token. Errors contain names of
// parameters, never their values.
func parse(contentType, body string) (Request, error) {
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != formType {
		return Request{}, &Error{InvalidRequest, "the Content-Type must be " + formType}
	}
	form, err := url.ParseQuery(body)
	if err != nil {
		return Request{}, &Error{InvalidRequest, "the body is not a valid form"}
	}
	for name, values := range form {
		if len(values) > 1 {
			return Request{}, &Error{InvalidRequest, fmt.Sprintf("%.40q occurs twice", name)}
		}
	}
	request := Request{SubjectToken: form.Get("subject_token"),
		SubjectTokenType: form.Get("subject_token_type"),
		Audience:         form.Get("audience"), Scope: form.Get("scope")}
	if request.SubjectToken == "" {
		request.SubjectTokenType = typeJWT // type of the token in the token file
	}
	requested := form.Get("requested_token_type")
	switch {
	case form.Get("grant_type") != grantType:
		return Request{}, &Error{unsupported, "grant_type must be " + grantType}
	case request.SubjectTokenType == "":
		return Request{}, &Error{InvalidRequest, "subject_token_type is missing"}
	case requested != "" && requested != typeAccess:
		return Request{}, &Error{InvalidRequest, "requested_token_type must be " + typeAccess}
	case form.Get("actor_token") != "":
		return Request{}, &Error{InvalidRequest, "actor_token is not supported"}
	case form.Get("resource") != "":
		return Request{}, &Error{InvalidTarget, "resource is not supported; use audience"}
	}
	return request, nil
}
